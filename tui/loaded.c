#include "tui/loaded.h"

#include "base/mem.h"

#include <inttypes.h>
#include <math.h>

bool tui_loaded_any(const tui_loaded *l) { return l->there[TUI_A] || l->there[TUI_B]; }
int tui_loaded_first(const tui_loaded *l) { return l->there[TUI_A] ? TUI_A : TUI_B; }

static const void *first_data(const tui_loaded *l) { return l->side[tui_loaded_first(l)].tensor.data; }

bool tui_loaded_shows(const tui_loaded *l, int side) { return l->pair || side == tui_loaded_first(l); }

bool tui_loaded_differs(const tui_loaded *l, int64_t i)
{
    fmt_dtype d = l->tensor.dtype;
    return l->pair && rpl_element_bits(d, l->side[TUI_A].tensor.data, i) !=
                          rpl_element_bits(d, l->side[TUI_B].tensor.data, i);
}

bool tui_same_shape(const fmt_tensor *a, const fmt_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/* ---- reading ---- */

/* The profile of one side alone: magnitudes, and how many are not finite. */
static void profile_alone(tui_loaded *l)
{
    const void *data = first_data(l);
    l->largest = 0;
    for (int64_t r = 0; r < l->rows; r++) {
        rpl_cell *row = &l->by_row[r];
        *row = (rpl_cell){ 0 };
        memset(l->by_block + r * l->blocks, 0, (size_t)l->blocks * sizeof *l->by_block);
        for (int64_t c = 0; c < l->cols; c++) {
            double v = fabs(rpl_element(l->tensor.dtype, data, r * l->cols + c));
            rpl_cell *block = &l->by_block[r * l->blocks + c / RPL_PROFILE_BLOCK];
            if (!isfinite(v)) block->n_differ++, row->n_differ++;
            else if (v > (double)block->max_abs) block->max_abs = (float)v;
        }
        for (int64_t b = 0; b < l->blocks; b++) row->max_abs = fmaxf(row->max_abs, l->by_block[r * l->blocks + b].max_abs);
        l->largest = fmax(l->largest, (double)row->max_abs);
    }
}

static err_code profile(tui_loaded *l, err *e)
{
    int64_t elems = fmt_tensor_elems(&l->tensor);
    l->cols = l->tensor.ndim ? l->tensor.shape[l->tensor.ndim - 1] : 1;
    l->rows = l->cols ? elems / l->cols : 0;
    l->blocks = (l->cols + RPL_PROFILE_BLOCK - 1) / RPL_PROFILE_BLOCK;
    void *rows = l->by_row, *blocks = l->by_block;
    bool fine = mem_grow(&rows, &l->rows_capacity, (size_t)l->rows + 1, sizeof *l->by_row);
    l->by_row = rows;
    fine = mem_grow(&blocks, &l->blocks_capacity, (size_t)(l->rows * l->blocks) + 1, sizeof *l->by_block) && fine;
    l->by_block = blocks;
    if (!fine) return err_set(e, ERR_NOMEM, "no memory for the profile of %lld rows", (long long)l->rows);
    if (l->pair) {
        const void *a = l->side[TUI_A].tensor.data, *b = l->side[TUI_B].tensor.data;
        rpl_metrics_of(l->tensor.dtype, a, b, elems, &l->m);
        rpl_profile(l->tensor.dtype, a, b, l->rows, l->cols, l->by_row, l->by_block);
    } else {
        profile_alone(l);
    }
    return ERR_OK;
}

/* ---- histograms ---- */

static int decade_of(double distance)
{
    if (distance == 0) return 0;
    if (!isfinite(distance)) return TUI_DECADES - 1;
    int d = (int)floor(log10(distance)) + 14; /* 1 holds less than 1e-12 */
    return d < 1 ? 1 : d > TUI_DECADES - 2 ? TUI_DECADES - 2 : d;
}

const char *tui_decade_text(int decade, char buf[24])
{
    if (decade == 0) snprintf(buf, 24, "0");
    else if (decade == TUI_DECADES - 1) snprintf(buf, 24, "not finite");
    else snprintf(buf, 24, "%s1e%d", decade == 1 ? "<" : "", decade == 1 ? -12 : decade - 14);
    return buf;
}

static void make_histograms(tui_loaded *l)
{
    int64_t n = l->rows * l->cols;
    fmt_dtype d = l->tensor.dtype;
    memset(l->bin, 0, sizeof l->bin);
    memset(l->decade, 0, sizeof l->decade);
    l->lowest = INFINITY;
    l->highest = -INFINITY;
    for (int side = TUI_A; side < TUI_SIDES; side++)
        for (int64_t i = 0; tui_loaded_shows(l, side) && i < n; i++) {
            double v = rpl_element(d, l->side[side].tensor.data, i);
            if (!isfinite(v)) continue;
            if (v < l->lowest) l->lowest = v;
            if (v > l->highest) l->highest = v;
        }
    double scale = l->highest > l->lowest ? TUI_BINS / (l->highest - l->lowest) : 0;
    for (int side = TUI_A; side < TUI_SIDES; side++)
        for (int64_t i = 0; tui_loaded_shows(l, side) && i < n; i++) {
            double v = rpl_element(d, l->side[side].tensor.data, i);
            int bin = isfinite(v) ? (int)((v - l->lowest) * scale) : -1;
            if (bin >= 0) l->bin[side][bin < TUI_BINS ? bin : TUI_BINS - 1]++;
        }
    for (int64_t i = 0; l->pair && i < n; i++) {
        const void *a = l->side[TUI_A].tensor.data, *b = l->side[TUI_B].tensor.data;
        double distance = fabs(rpl_element(d, a, i) - rpl_element(d, b, i));
        l->decade[tui_loaded_differs(l, i) ? decade_of(distance) : 0]++;
    }
}

/* ---- both sides, and more ---- */

static err_code get_more(tui_loaded *l, const fmt_tape *const *more, int n_more, const fmt_tape_key *key, err *e)
{
    l->n_more = n_more;
    for (int i = 0; i < n_more; i++) {
        err why = { 0 };
        err_code rc = cap_joined_get(more[i], key, &l->more[i], &why);
        if (rc == ERR_NOMEM) return err_set(e, rc, "%s", why.msg);
        l->more_there[i] = rc == ERR_OK && tui_same_shape(&l->tensor, &l->more[i].tensor);
    }
    return ERR_OK;
}

err_code tui_loaded_get(tui_loaded *l, const tui_model *m, const fmt_tape *const *more, int n_more, const cap_name *n,
                        err *e)
{
    const fmt_tape_key key = { n->round, n->slot, 0, n->name };
    for (int side = TUI_A; side < TUI_SIDES; side++) {
        tui_facts facts;
        err why = { 0 };
        l->there[side] = false;
        l->why[side][0] = 0;
        if (!tui_model_facts(m, side, n, &facts)) continue;
        err_code rc = cap_joined_get(tui_model_tape(m, side), &key, &l->side[side], &why);
        if (rc == ERR_NOMEM) return err_set(e, rc, "%s", why.msg);
        l->there[side] = rc == ERR_OK;
        if (rc != ERR_OK) snprintf(l->why[side], sizeof l->why[side], "%.*s", (int)sizeof l->why[side] - 1, why.msg);
    }
    l->pair = l->there[TUI_A] && l->there[TUI_B] &&
              tui_same_shape(&l->side[TUI_A].tensor, &l->side[TUI_B].tensor);
    l->rows = l->cols = l->blocks = 0;
    l->n_more = 0;
    if (!tui_loaded_any(l)) return ERR_OK;
    l->tensor = l->side[tui_loaded_first(l)].tensor;
    l->tensor.data = NULL;
    TRY(profile(l, e));
    make_histograms(l);
    return get_more(l, more, n_more, &key, e);
}

void tui_loaded_fini(tui_loaded *l)
{
    for (int side = TUI_A; side < TUI_SIDES; side++) cap_value_fini(&l->side[side]);
    for (int i = 0; i < TUI_ARMS_MAX; i++) cap_value_fini(&l->more[i]);
    free(l->by_row);
    free(l->by_block);
    *l = (tui_loaded){ 0 };
}

/* ---- finding ---- */

int64_t tui_loaded_worst(const tui_loaded *l)
{
    int64_t worst = -1;
    double most = -1;
    if (l->pair) return l->m.worst;
    for (int64_t i = 0; tui_loaded_any(l) && i < l->rows * l->cols; i++) {
        double v = fabs(rpl_element(l->tensor.dtype, first_data(l), i));
        if (!(v > most)) continue;
        most = v;
        worst = i;
    }
    return worst;
}

static bool is_wanted(const tui_loaded *l, int64_t i)
{
    return l->pair ? tui_loaded_differs(l, i) : !isfinite(rpl_element(l->tensor.dtype, first_data(l), i));
}

int64_t tui_loaded_next(const tui_loaded *l, int64_t from)
{
    for (int64_t i = from + 1; i < l->rows * l->cols;) {
        int64_t row = i / l->cols, block = i % l->cols / RPL_PROFILE_BLOCK;
        int64_t end = row * l->cols + (block + 1) * RPL_PROFILE_BLOCK;
        if (end > (row + 1) * l->cols) end = (row + 1) * l->cols;
        if (l->by_block[row * l->blocks + block].n_differ == 0) i = end; /* blocks without any are stepped over */
        for (; i < end; i++)
            if (is_wanted(l, i)) return i;
    }
    return -1;
}

int64_t tui_loaded_previous(const tui_loaded *l, int64_t from)
{
    for (int64_t i = from - 1; i >= 0; i--) {
        int64_t row = i / l->cols, block = i % l->cols / RPL_PROFILE_BLOCK;
        if (l->by_block[row * l->blocks + block].n_differ == 0) i = row * l->cols + block * RPL_PROFILE_BLOCK;
        else if (is_wanted(l, i)) return i;
    }
    return -1;
}

static int pair_level(const rpl_cell *cell)
{
    if (cell->n_differ == 0) return 0;
    double decade = cell->rel_l2 > 0 ? ceil(log10((double)cell->rel_l2)) : -7; /* no L2: signs of zero, NaN payloads */
    return decade < -7 ? 1 : decade > 0 ? 8 : (int)decade + 8;
}

static int lone_level(const rpl_cell *cell, double largest)
{
    if (!(cell->max_abs > 0) || !(largest > 0)) return 0;
    double power = floor(log2((double)cell->max_abs / largest)) + 8;
    return power < 1 ? 1 : power > 8 ? 8 : (int)power;
}

int tui_loaded_heat(const tui_loaded *l, int64_t row0, int64_t row1, int64_t block0, int64_t block1)
{
    int most = 0;
    for (int64_t r = row0; r < row1 && r < l->rows; r++)
        for (int64_t b = block0; b < block1 && b < l->blocks; b++) {
            const rpl_cell *cell = &l->by_block[r * l->blocks + b];
            int level = l->pair ? pair_level(cell) : lone_level(cell, l->largest);
            if (level > most) most = level;
        }
    return most;
}

uint64_t tui_loaded_ulp(const tui_loaded *l, int64_t i)
{
    uint32_t bytes = fmt_dtype_bytes(l->tensor.dtype);
    const uint8_t *a = l->side[TUI_A].tensor.data, *b = l->side[TUI_B].tensor.data;
    rpl_metrics m;
    rpl_metrics_of(l->tensor.dtype, a + i * bytes, b + i * bytes, 1, &m); /* so that it is the same figure everywhere */
    return m.max_ulp;
}

/* ---- bits ---- */

bool tui_qdq_read(fmt_dtype d, const void *data, int64_t first, uint8_t codes[FMT_QDQ_GROUP], uint8_t *scale)
{
    bf16 x[FMT_QDQ_GROUP];
    bool any = false;
    if (d != FMT_DTYPE_BF16) return false;
    memcpy(x, (const uint8_t *)data + first * 2, sizeof x);
    fmt_qdq_encode(x, codes, scale);
    for (int i = 0; i < FMT_QDQ_GROUP; i++) {
        if (fmt_qdq_decode(codes[i], *scale) != x[i]) return false;
        any = any || (x[i] & 0x7fff) != 0;
    }
    return any;
}

const char *tui_qdq_text(uint8_t code, uint8_t scale, char buf[96])
{
    int at = snprintf(buf, 96, "code 0x%02x  ", code);
    for (int b = 7; b >= 0; b--)
        at += snprintf(buf + at, 96 - (size_t)at, "%d%s", code >> b & 1, b == 7 || b == 3 ? " " : "");
    snprintf(buf + at, 96 - (size_t)at, "  scale byte %d, 2^%d", scale, scale - FMT_E8M0_BIAS);
    return buf;
}

const char *tui_bits_text(fmt_dtype d, const void *data, int64_t i, char buf[96])
{
    static const struct { int exponent, mantissa; } FIELDS[FMT_DTYPE_COUNT] = {
        [FMT_DTYPE_F64] = { 11, 52 }, [FMT_DTYPE_F32] = { 8, 23 }, [FMT_DTYPE_BF16] = { 8, 7 }, [FMT_DTYPE_F16] = { 5, 10 },
        [FMT_DTYPE_F8] = { 4, 3 }, [FMT_DTYPE_F8_E5M2] = { 5, 2 }, [FMT_DTYPE_E8M0] = { 8, 0 },
    };
    uint64_t bits = rpl_element_bits(d, data, i);
    int n_bits = 8 * (int)fmt_dtype_bytes(d), at = snprintf(buf, 96, "0x%0*" PRIx64, n_bits / 4, bits);
    if (FIELDS[d].exponent == 0) return buf;
    at += snprintf(buf + at, 96 - (size_t)at, "  ");
    for (int b = n_bits - 1; b >= 0; b--) {
        bool first = b == FIELDS[d].mantissa - 1 || (b == FIELDS[d].mantissa + FIELDS[d].exponent - 1 && b != n_bits - 1);
        at += snprintf(buf + at, 96 - (size_t)at, "%s%d", first ? " " : "", (int)(bits >> b & 1));
    }
    return buf;
}
