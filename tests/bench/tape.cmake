# Not a test: run by hand, on an otherwise idle machine.
add_executable(bench_tape ${CMAKE_CURRENT_LIST_DIR}/bench_tape.c)
target_link_libraries(bench_tape PRIVATE formats)
