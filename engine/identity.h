/* Identity: what exactly ran. An object that every tape, manifest and report carries, and that replay compares. */
#ifndef ENGINE_IDENTITY_H
#define ENGINE_IDENTITY_H

#include "engine/arm.h"
#include "engine/weights.h"

/* { "checkpoint": sha256, "arm": {name, experts, dense, head, markov, kernels}, "backend", "mode", "acc", "combine", "tp",
 * "device", "isa", "build": {version, source, compiler}, "libraries": {...}, "head": {from, tensor, sha256} }; on CUDA also
 * "comm", and "device" names card, driver, runtime and NCCL; with a planted fault "injected" (engine/fault.h). New
 * reference; NULL: no memory. */
json_t *eng_identity(const eng_weights *w, const eng_options *o);
/* How the run that wrote an identity held its weights; what it does not say is official. */
eng_reps eng_identity_reps(const json_t *identity);
const char *eng_build(void); /* this program: "0.1.0 d4935ace8a74" */
/* First difference that matters for replay (checkpoint), or ERR_OK. ERR_IDENTITY names both values. */
MUST_USE err_code eng_identity_check(const json_t *recorded, const eng_weights *w, err *e);

#endif
