# The twins of every op but linear.
foreach(test check act_qdq rmsnorm rope mhc attention gate swiglu combine argmax confidence ring reduce)
  sparktape_test(test_${test} LINKS kernels)
endforeach()
