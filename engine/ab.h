/* Inside the ab command: two ways to the same result, base and new, compared and then timed side by side.
 *
 * A pair (engine/ab_pairs*.c) says which arrays it works on, how they are filled, what each side launches, what its
 * contract promises and how many bytes each side moves. The harness (engine/ab.c) knows nothing of kernels and nothing of
 * CUDA: it sees a device as a table of functions. That table is the card's (engine/ab_card.c), the CPU's
 * (engine/ab_cpu.c), or a test's.
 *
 * A comparison runs both sides on the same inputs. Before a run every output is filled with a pattern of that side, and
 * what is read and written is put back; so an element that a side leaves alone shows, even where both do. */
#ifndef ENGINE_AB_H
#define ENGINE_AB_H

#include "formats/dtype.h"
#include "kernels/bound.h"
#include "kernels/device.h"

enum {
    AB_BASE = 0, AB_NEW = 1, AB_SIDES = 2,
    AB_ARRAYS_MAX = 16,
    AB_DIMS_MAX = 6,
    AB_T_MAX = 128,
    AB_NODES = 64, /* runs of a side in one timed unit on a card: a graph of so many, as a step is a graph of many */
};

/* Inputs that a seed is made into. All but the first are such as a kernel meets rarely and may get wrong. */
typedef enum ab_kind {
    AB_PLAIN,    /* about normal */
    AB_ZEROS,    /* +0 and -0 */
    AB_TIES,     /* a few different values: equal scores, sums that lie between two bf16 */
    AB_DENORMAL,
    AB_HUGE,     /* squares overflow */
    AB_STALE,    /* plain numbers; ids and plans repeat, or hold what an earlier step left */
    AB_KINDS
} ab_kind;
const char *ab_kind_name(ab_kind k);

typedef enum ab_role {
    AB_IN,     /* read; checked to be unchanged */
    AB_WEIGHT, /* the same, filled once and not checked; on a card timed over more copies than its cache holds */
    AB_OUT,    /* written, every element; compared */
    AB_STATE,  /* read and written; compared, and must differ from what it was (AB_PLAIN) */
    AB_WORK,   /* written and read again by one side alone; not compared */
} ab_role;

typedef struct ab_array {
    const char *name;
    ab_role role;
    fmt_dtype type;
    int64_t n;   /* elements */
    float scale; /* AB_IN, AB_STATE of F32 and BF16: filled with numbers of this size; 0: the pair's fill does it */
} ab_array;

/* One run of one side. buf: by the order in which the pair lists its arrays; in the memory of the device. */
typedef struct ab_call {
    const int32_t *dim;
    int32_t T;
    int32_t node; /* which run of a timed unit; 0 otherwise */
    bool on_card;
    krn_stream stream;
    void *buf[AB_ARRAYS_MAX];
} ab_call;

/* What a pair fills, and reads again for its bound: host memory, in the same order. */
typedef struct ab_inputs {
    const int32_t *dim;
    int32_t T;
    ab_kind kind;
    uint64_t seed;
    void *buf[AB_ARRAYS_MAX];
} ab_inputs;

typedef enum ab_promise {
    AB_BITS,  /* both sides give the same bits */
    AB_BOUND, /* both sides lie inside the bound of the contract */
} ab_promise;

typedef struct ab_pair {
    const char *name[AB_SIDES]; /* ops that run one after the other are joined by + */
    const char *summary;
    ab_promise promise;
    bool own_twin;       /* new has a CPU twin of its own. Else its reference is the base, and the CPU runs that twice */
    uint32_t kinds;      /* bits, 1 << ab_kind, beside AB_PLAIN */
    int32_t t_max;       /* no larger T is taken */
    int32_t seeds_max;   /* 0: as many as are asked for. Where a comparison is expensive */
    const char *dims;    /* names of dim[], separated by a space */
    int32_t n_shapes, cpu_first; /* the CPU takes those from cpu_first on. The first one taken is timed */
    const int32_t (*shape)[AB_DIMS_MAX];
    /* Lists the arrays for T, returns how many. A weight's size does not depend on T, others grow with it. */
    int32_t (*arrays)(const int32_t *dim, int32_t T, ab_array *out);
    void (*weights)(const ab_inputs *in);            /* fills what is AB_WEIGHT; NULL: none */
    void (*fill)(const ab_inputs *in);               /* fills inputs without a scale; NULL: none */
    err_code (*prepare)(const ab_call *c, err *e);   /* once weights are on the device; NULL: nothing */
    err_code (*side[AB_SIDES])(const ab_call *c, err *e);
    void (*bytes)(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES]); /* that a side's kernels read and write */
    /* AB_BOUND: where the values of the first AB_OUT, F32 or BF16, may lie before they are rounded to BF16; else NULL. */
    void (*bound)(const ab_inputs *in, krn_span *y);
} ab_pair;

/* ---- the registry: engine/ab_pairs.c ---- */

typedef struct ab_pair_list { const ab_pair *pair; int32_t n; } ab_pair_list;
extern const ab_pair_list AB_PAIRS_PLE, AB_PAIRS_NORM, AB_PAIRS_FFN, AB_PAIRS_LINEAR, AB_PAIRS_EXPERTS;
int32_t ab_pair_count(void);
const ab_pair *ab_pair_at(int32_t i);
/* ERR_ARG says what was found, and the names that are nearest, or what a known base is compared with. */
MUST_USE err_code ab_pair_find(const char *base, const char *fresh, const ab_pair **out, err *e);

/* Fills n elements of F32 or BF16 with numbers of a kind and size; the same for equal seed and name. */
void ab_fill_numbers(fmt_dtype type, void *out, int64_t n, float scale, ab_kind kind, uint64_t seed, const char *name);

/* ---- devices ---- */

typedef err_code (*ab_launch_fn)(void *ctx, int32_t node, err *e);

typedef struct ab_device ab_device;
struct ab_device {
    bool on_card;
    krn_stream stream;        /* NULL on the CPU */
    int32_t nodes;            /* runs of a side in one timed unit */
    double copy_bytes_per_s;  /* the floor: read plus write speed of a large copy */
    double empty_us;          /* one node of a graph of kernels that do nothing; 0: no graphs */
    char name[192];
    err_code (*take)(ab_device *d, uint64_t bytes, void **out, err *e);
    void (*give)(ab_device *d, void *memory); /* NULL is a no-op */
    /* Either way between host and device, and within the device. What stood before it is done, and so is the copy. */
    err_code (*copy)(ab_device *d, void *to, const void *from, uint64_t bytes, err *e);
    err_code (*fill)(ab_device *d, void *to, uint8_t byte, uint64_t bytes, err *e);
    /* A unit: launch(ctx, 0) to (ctx, n - 1) one after the other, as one graph or one by one; time plays it and waits. */
    err_code (*unit_open)(ab_device *d, ab_launch_fn launch, void *ctx, int32_t n, bool graph, void **out, err *e);
    err_code (*unit_time)(ab_device *d, void *unit, double *us, err *e);
    void (*unit_close)(ab_device *d, void *unit); /* NULL is a no-op */
};

/* The machine's own CPU, with the twins of the kernels. ERR_NOMEM. */
MUST_USE err_code ab_cpu_open(ab_device *out, err *e);
/* The first CUDA device. ERR_DEVICE: there is none, or no backend for it in this build. ERR_NOMEM. */
MUST_USE err_code ab_card_open(ab_device **out, err *e);
void ab_card_close(ab_device *d); /* NULL is a no-op */

/* What the card says of itself at this moment. known false: its driver's library (NVML) is not here, or does not answer. */
typedef struct ab_state {
    bool known;
    int32_t sm_mhz, memory_mhz, temperature_c;
    double power_w;
} ab_state;
void ab_state_read(ab_state *out);

/* ---- comparing ---- */

typedef enum ab_fault {
    AB_EQUAL,     /* none: the promise is kept */
    AB_DIFFERS,   /* bits differ */
    AB_OUTSIDE,   /* AB_BOUND: a value is outside its bound */
    AB_UNWRITTEN, /* an output element was left alone */
    AB_UNMOVED,   /* state is as it was */
    AB_SPOILT,    /* an input was written to */
    AB_FAULTS
} ab_fault;
const char *ab_fault_name(ab_fault f);

typedef struct ab_finding {
    ab_fault fault;
    bool by[AB_SIDES];       /* whose fault; AB_DIFFERS: both */
    const char *array;
    fmt_dtype type;
    int64_t index, n, count; /* the first such element, of n, and how many */
    uint64_t bits[AB_SIDES]; /* values there */
    krn_span bound;          /* AB_OUTSIDE */
    int64_t n_equal, n_all;  /* elements of all outputs with equal bits, and all of them */
    ab_kind kind;
    uint64_t seed;
    int32_t T;
} ab_finding;

/* A pair at one shape on one device: its memory, for T up to t_max. */
typedef struct ab_case ab_case;
/* dim: borrowed until close. *out is NULL on error. ERR_NOMEM, ERR_DEVICE. */
MUST_USE err_code ab_case_open(const ab_pair *p, const int32_t *dim, int32_t t_max, ab_device *d, ab_case **out, err *e);
void ab_case_close(ab_case *c); /* NULL is a no-op */
void ab_case_resize(ab_case *c, int32_t T); /* 1 <= T <= t_max */
/* Both sides on one set of inputs. A broken promise is a result, not an error. */
MUST_USE err_code ab_case_compare(ab_case *c, ab_kind kind, uint64_t seed, ab_finding *out, err *e);
/* "norm[7] of 5120: base 0x3f80 (1), new 0x3f81 (1.0078125): bits differ, 3 elements; kind ties, seed 7, T 4" */
void ab_finding_text(const ab_finding *f, char *out, size_t bytes);

/* ---- timing ---- */

typedef struct ab_settings {
    int32_t iterations; /* pairs of runs, A B A B */
    double settle_s;    /* both sides in turn before the first pair counts */
    double budget_s;    /* no further pair begins after it, but for the first 5; 0: none */
} ab_settings;

typedef struct ab_times {
    int32_t n;                            /* pairs */
    double p50_us[AB_SIDES];              /* of one run */
    double ratio, ratio_min, ratio_max;   /* new / base of each pair: the median, and the ends */
    double faster;                        /* share of pairs in which new was the faster one */
    double drift;                         /* median of the base: second half of the pairs / first half */
} ab_times;

/* us: by pair. n >= 1; room [n]. */
void ab_times_of(const double *base_us, const double *new_us, int32_t n, double *room, ab_times *out);
/* graph: units of d->nodes runs as one graph, each run with its own copy of the weights. Else one run at a time.
 * The inputs are those of the last comparison. */
MUST_USE err_code ab_case_time(ab_case *c, bool graph, const ab_settings *s, ab_times *out, err *e);
/* "faster", "slower" or "no difference": whether three of four pairs agree. */
const char *ab_times_word(const ab_times *t);

#endif
