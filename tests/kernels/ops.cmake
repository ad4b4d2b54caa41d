# The twins of every op but linear.
foreach(test check act_qdq rmsnorm rope mhc attention gate swiglu combine argmax confidence markov ring reduce embed
             digest snapshot top_rows bound bound_mhc bound_sharp row_loops exl3_ref bound_exl3
             exl3_encode ple)
  sparktape_test(test_${test} LINKS kernels)
endforeach()
