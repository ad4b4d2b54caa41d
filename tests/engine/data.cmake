sparktape_test(test_config LINKS engine)
sparktape_test(test_inventory LINKS engine)
sparktape_test(test_arm LINKS engine)
sparktape_test(test_weights LINKS engine)
sparktape_test(test_exl3_reader LINKS engine)
sparktape_test(test_exl3_arms LINKS engine TIMEOUT 120)
# The loader of device weights, over a device that the test pretends. Where CUDA is built the real device has these names;
# the dev preset is always without.
if(NOT HAVE_CUDA)
  sparktape_test(test_device_weights LINKS engine SOURCES ${PROJECT_SOURCE_DIR}/engine/device_weights.c)
endif()
sparktape_test(test_script LINKS engine)
sparktape_fuzz(fuzz_config LINKS engine)
sparktape_fuzz(fuzz_script LINKS engine)
