sparktape_test(test_config LINKS engine)
sparktape_test(test_inventory LINKS engine)
sparktape_test(test_arm LINKS engine)
sparktape_test(test_weights LINKS engine)
# The loader of device weights, over a device that the test pretends: compiled here, so builds without CUDA test it too.
sparktape_test(test_device_weights LINKS engine SOURCES ${PROJECT_SOURCE_DIR}/engine/device_weights.c)
sparktape_test(test_script LINKS engine)
sparktape_fuzz(fuzz_config LINKS engine)
sparktape_fuzz(fuzz_script LINKS engine)
