sparktape_test(test_synth LINKS engine TIMEOUT 120)
sparktape_test(test_manifest LINKS engine TIMEOUT 120)
sparktape_test(test_plan LINKS engine)
sparktape_test(test_quantize LINKS engine)
sparktape_test(test_quantize_faults LINKS engine)
target_link_options(test_quantize_faults PRIVATE ${ALLOC_FAIL_WRAP} ${IO_FAIL_WRAP} ${JSON_WHOLE_WRAP}
                                                 LINKER:--wrap=krn_exl3_encode_tiles_ref)
sparktape_test(test_ab LINKS engine)
