# Libraries from the distribution. Each is an imported target; a missing one is named with its Debian package.
#
# SPARKTAPE_STATIC_DEPS takes their archives instead, for binaries that run where they are not installed (tests/gpu/bundle);
# what remains shared is looked for beside the binary. Libraries once found are kept by the build folder: give the option to
# a fresh one.
option(SPARKTAPE_STATIC_DEPS "link the distribution's libraries statically" OFF)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

set(library_suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
if(SPARKTAPE_STATIC_DEPS)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(CMAKE_INSTALL_RPATH "$ORIGIN")
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
endif()

# A library without an archive would be linked by its name, and so shared after all.
function(sparktape_dependency_check target)
  get_target_property(libraries PkgConfig::${target} INTERFACE_LINK_LIBRARIES)
  foreach(library ${libraries})
    if(SPARKTAPE_STATIC_DEPS AND NOT library MATCHES "\\.a$")
      message(FATAL_ERROR "SPARKTAPE_STATIC_DEPS: no archive of ${library} for ${target}")
    endif()
  endforeach()
endfunction()

function(sparktape_dependency target module package)
  pkg_check_modules(${target} IMPORTED_TARGET GLOBAL ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "${module} is missing: apt-get install ${package} (./run build does it)")
  endif()
  sparktape_dependency_check(${target})
  add_library(dep_${target} ALIAS PkgConfig::${target})
endfunction()

sparktape_dependency(lz4 liblz4 liblz4-dev)
sparktape_dependency(jansson jansson libjansson-dev)
sparktape_dependency(crypto libcrypto libssl-dev)
sparktape_dependency(ssl libssl libssl-dev) # before crypto where both are linked
if(SPARKTAPE_STATIC_DEPS) # libuv's archive has a module, and on Debian a name, of its own
  sparktape_dependency(uv libuv-static libuv1-dev)
else()
  sparktape_dependency(uv libuv libuv1-dev)
endif()
sparktape_dependency(ncursesw ncursesw libncurses-dev)

# msgpack-c: the C library is called msgpack, msgpackc or msgpack-c, depending on the release.
pkg_search_module(msgpack IMPORTED_TARGET GLOBAL msgpack-c msgpackc msgpack)
if(NOT msgpack_FOUND)
  message(FATAL_ERROR "msgpack-c is missing: apt-get install libmsgpack-dev (./run build does it)")
endif()
sparktape_dependency_check(msgpack)
add_library(dep_msgpack ALIAS PkgConfig::msgpack)

if(SPARKTAPE_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS C)
endif()

set(CMAKE_FIND_LIBRARY_SUFFIXES ${library_suffixes})
