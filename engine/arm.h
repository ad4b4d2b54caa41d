/* Arms: what a run is made of, as a table.
 *
 * An arm names a representation of the weights and the implementation of each op kind; it never has its own copy of the
 * step. */
#ifndef ENGINE_ARM_H
#define ENGINE_ARM_H

#include "engine/inventory.h"
#include "kernels/kernels.h"

typedef enum eng_combine { ENG_COMBINE_EXACT, ENG_COMBINE_FUSED } eng_combine;
typedef enum eng_mode { ENG_MODE_EAGER, ENG_MODE_GRAPH } eng_mode; /* GRAPH on the CPU: the planned executor */
typedef enum eng_backend { ENG_BACKEND_CPU, ENG_BACKEND_CUDA } eng_backend;
/* How the ranks of the CUDA backend meet: one card each; all on one card; one rank alone, for timing, never compared. */
typedef enum eng_comm_kind { ENG_COMM_NCCL, ENG_COMM_EMULATED, ENG_COMM_SOLO } eng_comm_kind;
typedef enum eng_rep { ENG_REP_FP4, ENG_REP_FP8, ENG_REP_BF16, ENG_REP_EXL3, ENG_REP_MIXED } eng_rep;

/* How the Markov term is held: computed for every token; hot rows of it kept in f32, which changes no bit; the control's
 * policy, where base logits, term and sum are rounded to bf16 and many terms are kept so. */
typedef enum eng_markov { ENG_MARKOV_FACTORISED, ENG_MARKOV_HOT, ENG_MARKOV_CACHE } eng_markov;

/* How the parts of the weights are held, so which tensors of the checkpoint are read, and what is rounded with them. MXFP4,
 * FP8 and MIXED are the official bytes (of MIXED main_proj decoded); so is what has no EXL3 form (wo_a). All zero:
 * official. */
typedef struct eng_reps { eng_rep experts, dense, head; eng_markov markov; } eng_reps;
/* A kind of weight is held in EXL3: its product takes rows without QDQ. */
bool eng_reps_exl3(const eng_reps *r, eng_wid id);
/* A kind of weight is decoded once to BF16. */
bool eng_reps_expand(const eng_reps *r, eng_wid id);

typedef struct eng_arm {
    const char *name;
    eng_rep experts, dense, head;
    eng_markov markov;
    const char *kernels;           /* "first" */
    bool kx;                       /* a card holds the FP4 experts as kernels/experts_kx.h lays them: other kernels over the
                                    * same weights, the same bits. The CPU runs them as the file lays them */
    bool kx2;                      /* and may run gate, up, SwiGLU, QDQ and down as one launch (kernels/experts_kx2.h) */
    bool fixed_head;               /* the arm is its head: --head may only repeat it */
    bool unsharded;                /* mirror, mirror64: one rank only */
    bool fixed_acc;                /* the arm is its accumulation: --acc may only repeat it */
    krn_acc acc;                   /* default accumulation on the CPU */
    const char *summary;
} eng_arm;

eng_reps eng_arm_reps(const eng_arm *a); /* without a --head */
size_t eng_arm_count(void);
const eng_arm *eng_arm_at(size_t i);
const eng_arm *eng_arm_find(const char *name); /* NULL: unknown */

/* One run's choice, complete: part of every identity. */
typedef struct eng_options {
    const eng_arm *arm;
    eng_backend backend;
    eng_mode mode;
    eng_reps reps;         /* the arm's, with the head of --head */
    krn_acc acc;
    krn_acc exl3_acc;      /* of products with EXL3 weights: acc. A judge takes blocked: only there rows become fp16 as they
                            * do everywhere (kernels/exl3.h) */
    eng_combine combine;
    int32_t n_ranks;       /* --tp */
    eng_comm_kind comm;    /* --comm; CUDA only */
    const char *bootstrap; /* --bootstrap: this process is one rank of NCCL; NULL: all ranks are here. Borrowed */
    int32_t rank;          /* --rank, with bootstrap */
    int32_t threads;       /* all ranks together; 0: all of the machine */
    int32_t poison;        /* CPU: 0 none, else 1 or 2 (engine/poison.h). No word, part of no identity: it must change no
                            * result */
    struct eng_fault *fault; /* a fault to plant (engine/fault.h); NULL: none. Borrowed */
    /* CUDA: which launches run the experts of a kx2 arm; NULL: as MODEL/dispatch.json says (engine/dispatch.h). Borrowed.
     * No word: changes no result, so it is part of no identity */
    const struct eng_dispatch *dispatch;
    bool lazy;             /* CUDA: eng_open captures no graphs, each is captured when it is first wanted. No word: changes
                            * no result, so it is part of no identity */
} eng_options;

/* The command-line words for the above, shared by every command that runs an arm. NULL members mean the default (arm
 * native-packed, cpu, eager, the arm's accumulation, exact, tp 1). */
typedef struct eng_option_words {
    const char *arm, *backend, *mode, *acc, *combine;
    const char *head;      /* --head official|k6; NULL: the arm's */
    const char *comm;      /* --comm nccl|emulated, with --backend cuda */
    const char *bootstrap; /* --bootstrap HOST:PORT, with --comm nccl */
    int64_t rank;          /* --rank, with --bootstrap */
    int64_t tp;            /* 0: not given */
} eng_option_words;
/* ERR_ARG for an unknown word or a combination that does not exist, ERR_DEVICE for devices that are not here. */
MUST_USE err_code eng_options_parse(const eng_option_words *words, int64_t threads, eng_options *out, err *e);

const char *eng_acc_name(krn_acc a);         /* "blocked" "f64" */
const char *eng_combine_name(eng_combine c); /* "exact" "fused" */
const char *eng_mode_name(eng_mode m);       /* "eager" "graph" */
const char *eng_backend_name(eng_backend b); /* "cpu" "cuda" */
const char *eng_comm_name(eng_comm_kind k);  /* "nccl" "emulated" "solo" */
const char *eng_rep_name(eng_rep r);
const char *eng_markov_name(eng_markov m);   /* "factorised" "hot rows" "bias cache" */

#endif
