# The sources that a bundle of `sparktape reduce` carries, as a table in the binary: reduce_sources_table.h, rows
# { "kernels/rope_ref.c", bytes, size }. The twins and what judges them, with every header that they include.
set(bundle_sources formats/number.c formats/exl3.c kernels/bound.c kernels/linear_ref.c kernels/simd_loops.c
    kernels/row_loops.c kernels/exl3_ref.c kernels/exl3_loops.c
    kernels/act_qdq_ref.c kernels/argmax_ref.c kernels/attention_ref.c kernels/combine_ref.c kernels/confidence_ref.c
    kernels/embed_ref.c kernels/gate_ref.c kernels/markov_ref.c kernels/mhc_ref.c kernels/rmsnorm_ref.c kernels/rope_ref.c
    kernels/swiglu_ref.c replay/judge_group.c replay/reduce_bundle.h)
set(todo ${bundle_sources})
set(done "")
set(arrays "")
set(rows "")
while(todo)
  list(POP_FRONT todo source)
  if(source IN_LIST done)
    continue()
  endif()
  list(APPEND done ${source})
  set(path ${PROJECT_SOURCE_DIR}/${source})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(STRINGS ${path} includes REGEX "^#include \"")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" header "${line}")
    list(APPEND todo ${header})
  endforeach()
  file(READ ${path} bytes HEX)
  # Without its _Pragma("omp simd") and its lines "#pragma omp ..", which -Wall warns of where OpenMP is not asked for: in
  # hex, up to 0a.
  string(REPLACE "5f507261676d6128226f6d702073696d642229" "" bytes "${bytes}")
  string(REGEX REPLACE "23707261676d61206f6d70([1-9a-f].|0[^a])*0a" "" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  list(LENGTH done i)
  string(APPEND arrays "static const unsigned char SOURCE_${i}[] = {${bytes}};\n")
  string(APPEND rows "    { \"${source}\", SOURCE_${i}, sizeof SOURCE_${i} },\n")
endwhile()
file(CONFIGURE OUTPUT reduce_sources_table.h CONTENT "${arrays}static const source SOURCES[] = {\n${rows}};\n" @ONLY)
