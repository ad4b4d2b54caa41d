add_executable(bench_block ${CMAKE_CURRENT_LIST_DIR}/bench_block.c)
target_link_libraries(bench_block PRIVATE engine flags)
