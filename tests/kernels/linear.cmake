sparktape_test(test_isa LINKS kernels)
sparktape_test(test_linear LINKS kernels TIMEOUT 120)
sparktape_test(test_experts LINKS kernels)
sparktape_test(test_experts_kx LINKS kernels)
