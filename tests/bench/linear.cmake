# Not a test: run by hand, on an otherwise idle machine.
add_executable(bench_linear ${CMAKE_CURRENT_LIST_DIR}/bench_linear.c)
target_link_libraries(bench_linear PRIVATE kernels)
