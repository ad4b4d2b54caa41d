# Not a test: run by hand, on an otherwise idle machine.
add_executable(bench_diff ${CMAKE_CURRENT_LIST_DIR}/bench_diff.c)
target_link_libraries(bench_diff PRIVATE replay)
