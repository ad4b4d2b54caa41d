sparktape_test(test_synth LINKS engine TIMEOUT 120)
sparktape_test(test_manifest LINKS engine TIMEOUT 120)
sparktape_test(test_plan LINKS engine)
sparktape_test(test_quantize LINKS engine)
