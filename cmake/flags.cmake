# Flags of every target, in one interface library.
add_library(flags INTERFACE)
include(CheckCCompilerFlag)
target_include_directories(flags INTERFACE ${PROJECT_SOURCE_DIR})
# Sums are written out in the order they are meant; the compiler may not fuse or reorder them.
set(c_flags -ffp-contract=off -fno-math-errno -fno-common -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
            -Wno-missing-field-initializers)
target_compile_options(flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${c_flags}>")
# gcc 12 forgets a rounding to float when it vectorises two of them in a row: (double)(float)x becomes x.
check_c_compiler_flag(-fno-tree-slp-vectorize HAVE_NO_TREE_SLP_VECTORIZE)
if(HAVE_NO_TREE_SLP_VECTORIZE)
  target_compile_options(flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fno-tree-slp-vectorize>)
endif()
if(SPARKTAPE_WERROR)
  target_compile_options(flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()
target_compile_definitions(flags INTERFACE _GNU_SOURCE SPARKTAPE_VERSION="${PROJECT_VERSION}")
if(SPARKTAPE_SANITIZE)
  target_compile_options(flags INTERFACE -fsanitize=${SPARKTAPE_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(flags INTERFACE -fsanitize=${SPARKTAPE_SANITIZE})
endif()
# Against hostile input (SECURITY.md, tests/e2e/hardened.py); nothing measurable is lost. A sanitizer has its own checks,
# fortified calls want optimised code. Position independence is the default of the compilers of Debian and Ubuntu.
if(NOT SPARKTAPE_SANITIZE)
  target_compile_options(flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fstack-protector-strong>)
  target_compile_options(flags INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:C>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
  target_link_options(flags INTERFACE LINKER:-z,relro,-z,now,-z,noexecstack)
endif()
if(SPARKTAPE_OPENMP)
  target_link_libraries(flags INTERFACE OpenMP::OpenMP_C)
else()
  target_compile_options(flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wno-unknown-pragmas>)
endif()
target_link_libraries(flags INTERFACE Threads::Threads m)

# sparktape_library(NAME SOURCES ... LINKS ...): one folder, one static library. Its layer check links the whole of it with
# nothing but what LINKS names, so that a call to the right does not build.
function(sparktape_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC ${arg_LINKS} flags)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/layer_check.c "int main(void) { return 0; }\n")
  add_executable(layer_${name} ${CMAKE_CURRENT_BINARY_DIR}/layer_check.c)
  target_link_libraries(layer_${name} PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,${name}>" flags)
endfunction()
