# The twins of every op but linear.
foreach(test check act_qdq rmsnorm rope mhc attention gate swiglu combine argmax confidence markov ring reduce embed
             digest snapshot top_rows bound row_loops)
  sparktape_test(test_${test} LINKS kernels)
endforeach()
