sparktape_test(test_program LINKS engine)
sparktape_test(test_comm LINKS engine)
sparktape_test(test_exec LINKS engine SOURCES ${PROJECT_SOURCE_DIR}/tests/support/alloc_guard.c TIMEOUT 120)
target_link_options(test_exec PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=free)
