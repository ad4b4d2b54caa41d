# Libraries from the distribution. Each is an imported target; a missing one is named with its Debian package.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

function(sparktape_dependency target module package)
  pkg_check_modules(${target} IMPORTED_TARGET GLOBAL ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "${module} is missing: apt-get install ${package} (./run build does it)")
  endif()
  add_library(dep_${target} ALIAS PkgConfig::${target})
endfunction()

sparktape_dependency(lz4 liblz4 liblz4-dev)
sparktape_dependency(jansson jansson libjansson-dev)
sparktape_dependency(crypto libcrypto libssl-dev)
sparktape_dependency(ncursesw ncursesw libncurses-dev)

# msgpack-c: the C library is called msgpack, msgpackc or msgpack-c, depending on the release.
pkg_search_module(msgpack IMPORTED_TARGET GLOBAL msgpack-c msgpackc msgpack)
if(NOT msgpack_FOUND)
  message(FATAL_ERROR "msgpack-c is missing: apt-get install libmsgpack-dev (./run build does it)")
endif()
add_library(dep_msgpack ALIAS PkgConfig::msgpack)

if(SPARKTAPE_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS C)
endif()
