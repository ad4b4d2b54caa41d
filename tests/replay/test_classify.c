#include "replay_help.h"

#include "replay/classify.h"

/* Tapes of the shared rounds: what a correct worker dumps. */
static fmt_tape *by_mirror, *by_packed;
static eng_config config;

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    config = *eng_weights_config(shared_run.weights);
    eng_options mirror = run_options("mirror", 0, "eager"), packed = run_options("native-packed", 2, "graph");
    by_mirror = record("mirror.tape", &mirror, ENG_LEVEL_V1);
    by_packed = record("packed.tape", &packed, ENG_LEVEL_V1);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(by_mirror);
    fmt_tape_close(by_packed);
    return run_teardown(state);
}

/* A classification under way, and its result. */
typedef struct classified { rpl_classify *c; const rpl_classification *r; } classified;

static rpl_classify_options strict(void)
{
    rpl_classify_options o = { .shard = 1, .n_shards = 1, .threads = 1, .quiet = true };
    rpl_gates_default(&o.gates);
    return o;
}

static classified classify(const fmt_tape *t, const rpl_classify_options *o)
{
    classified k;
    OK(rpl_classify_open(shared_run.weights, o, &k.c, e));
    OK(rpl_classify_tape(k.c, t, e));
    OK(rpl_classify_result(k.c, &k.r, e));
    return k;
}

/* Gates that fail, as a set of bits. */
static unsigned failing(const rpl_classification *r)
{
    unsigned set = 0;
    for (int g = 0; g < RPL_GATE_COUNT; g++) set |= (unsigned)(r->gate[g] != RPL_OUTCOME_PASS) << g;
    return set;
}
#define GATE(name) (1u << RPL_GATE_##name)

/* Classifies a copy of the mirror's tape with one thing changed. */
static classified changed(edit_fn edit, void *ctx)
{
    rpl_classify_options o = strict();
    fmt_tape *t = copy_tape(by_mirror, "changed.tape", edit, ctx);
    classified k = classify(t, &o);
    fmt_tape_close(t);
    return k;
}

/* Every flag is of this kind and value. */
static void assert_flags(const rpl_classification *r, rpl_flag_kind kind, const char *value, int32_t round, int64_t n)
{
    int64_t found = 0;
    for (size_t i = 0; i < r->n_flags; i++) {
        const rpl_flag *f = &r->flag[i];
        if (f->kind != kind || strcmp(f->value, value) != 0 || f->round != round)
            fail_msg("round %d slot %d %s: %s", f->round, f->slot, f->value, rpl_flag_text(f->kind));
        found += f->n;
    }
    assert_int_equal(found, n);
}

/* ---- correct dumps ---- */

static void what_the_mirror_dumps_is_the_band_itself(void **state)
{
    (void)state;
    rpl_classify_options o = strict();
    classified k = classify(by_mirror, &o);
    assert_int_equal(failing(k.r), 0);
    assert_int_equal(k.r->outcome, RPL_OUTCOME_PASS);
    assert_int_equal(k.r->n_flags, 0);
    assert_int_equal(k.r->certificate.n_illegal, 0);
    assert_true(k.r->n_keys >= 4 && k.r->n_windows == (int64_t)k.r->n_keys * config.n_stages);
    assert_int_equal(k.r->worker.n_unexplained + k.r->worker.n_explained, 0);
    for (size_t i = 0; i < k.r->n_keys; i++)
        for (int32_t s = 0; s < config.n_stages; s++)
            assert_true(k.r->key[i].worker.error[s] == k.r->key[i].mirror_error[s]);
    assert_true(k.r->worker.ratio <= 1.0001);
    rpl_classify_close(k.c);
}

static void float64_sums_have_no_distance(void **state)
{
    (void)state;
    rpl_classify_options o = strict();
    eng_options m64 = run_options("mirror64", 0, "eager");
    fmt_tape *t = record("own.tape", &m64, ENG_LEVEL_DEEP);
    classified k = classify(t, &o);
    assert_int_equal(k.r->outcome, RPL_OUTCOME_PASS);
    assert_true(k.r->worker.gate[RPL_GATE_ATTENTION] == 0 && k.r->worker.kl == 0);
    assert_int_equal(k.r->certificate.n_equal, k.r->certificate.n);
    rpl_classify_close(k.c);
    fmt_tape_close(t);
}

static void a_sharded_worker_has_no_flag(void **state)
{
    (void)state;
    rpl_classify_options o = strict();
    classified k = classify(by_packed, &o);
    assert_int_equal(failing(k.r) & (GATE(STATE) | GATE(OWN_LOGIT) | GATE(TOKENS)), 0);
    assert_int_equal(k.r->certificate.n_illegal, 0);
    rpl_classify_close(k.c);
}

static void parts_of_the_rounds_have_all_the_keys(void **state)
{
    (void)state;
    rpl_classify_options o = strict();
    classified whole = classify(by_mirror, &o);
    size_t n = 0;
    o.n_shards = 3;
    for (o.shard = 1; o.shard <= 3; o.shard++) {
        classified part = classify(by_mirror, &o);
        for (size_t i = 0; i < part.r->n_keys; i++, n++) {
            const rpl_key *a = &part.r->key[i];
            size_t at = 0;
            while (at < whole.r->n_keys && (whole.r->key[at].round != a->round || whole.r->key[at].slot != a->slot)) at++;
            assert_true(at < whole.r->n_keys);
            assert_true(a->worker.kl == whole.r->key[at].worker.kl && a->noise == whole.r->key[at].noise);
        }
        rpl_classify_close(part.c);
    }
    assert_int_equal(n, whole.r->n_keys);
    rpl_classify_close(whole.c);
}

/* ---- planted faults, each found by its verdict and by no other ---- */

static void a_flipped_bit_of_a_window_is_a_state_flag(void **state)
{
    (void)state;
    flips f = { .at = { "2/0/s1.window" } };
    classified k = changed(flip_bits, &f);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(failing(k.r), GATE(STATE));
    assert_flags(k.r, RPL_FLAG_DIFFERS, "s1.window", 2, 1);
    assert_true(k.r->certificate.n_illegal > 0);
    assert_string_equal(k.r->first_illegal, "round 2 slot 0 s1.window");
    rpl_classify_close(k.c);
}

/* Spoils a row of a window. */
typedef struct row_edit { const char *at; enum { ROW_SWAP, ROW_ZERO } how; int n_done; } row_edit;

static bool edit_row(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    row_edit *w = ctx;
    size_t width = (size_t)config.head_dim;
    bf16 *row = (bf16 *)(void *)data;
    if (!is_at(r, w->at)) return true;
    size_t n = (size_t)r->tensor.shape[0];
    w->n_done++;
    if (w->how == ROW_ZERO) memset(row, 0, width * sizeof *row);
    if (w->how == ROW_SWAP)
        for (size_t i = 0; i < width; i++) {
            bf16 keep = row[i];
            row[i] = row[(n - 1) * width + i];
            row[(n - 1) * width + i] = keep;
        }
    return true;
}

static void rows_in_each_others_place_are_named(void **state)
{
    (void)state;
    row_edit w = { .at = "1/0/s0.window", .how = ROW_SWAP };
    classified k = changed(edit_row, &w);
    assert_int_equal(w.n_done, 1);
    assert_int_equal(failing(k.r) & GATE(STATE), GATE(STATE));
    assert_flags(k.r, RPL_FLAG_PLACE, "s0.window", 1, 2);
    rpl_classify_close(k.c);
}

static void a_missing_row_is_named(void **state)
{
    (void)state;
    row_edit w = { .at = "1/0/s2.window", .how = ROW_ZERO };
    classified k = changed(edit_row, &w);
    assert_flags(k.r, RPL_FLAG_MISSING, "s2.window", 1, 1);
    assert_int_equal(k.r->flag[0].row, 0);
    rpl_classify_close(k.c);
}

/* The rows of a window that its round's insert overwrote, as the slot's last draft saw them. */
typedef struct stale { int32_t round, slot; const fmt_tape *from; int32_t before; int64_t n_stale; } stale;

static bool make_stale(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    stale *s = ctx;
    if (r->key.round != s->round || r->key.slot != s->slot || strcmp(r->key.name, "s0.window") != 0) return true;
    cap_value v = { 0 };
    const fmt_tape_key key = { s->before, s->slot, 0, "s0.window" };
    OK(cap_joined_get(s->from, &key, &v, e));
    size_t width = (size_t)config.head_dim * sizeof(bf16);
    for (int64_t row = 0; row < v.tensor.shape[0]; row++) {
        const uint8_t *old = (const uint8_t *)v.tensor.data + (size_t)row * width;
        if (memcmp(data + (size_t)row * width, old, width) == 0 || s->n_stale) continue;
        memcpy(data + (size_t)row * width, old, width);
        s->n_stale++;
    }
    cap_value_fini(&v);
    return true;
}

static void a_stale_row_is_named(void **state)
{
    (void)state;
    /* Of the shared rounds: a slot that drafts twice, with a window that went round in between. */
    for (int32_t slot = 0; slot < 2; slot++)
        for (int32_t round = 1; round < 4; round++) {
            stale s = { .round = round, .slot = slot, .from = by_mirror, .before = round - 1 };
            const fmt_tape_key now = { round, slot, 0, "s0.window" }, before = { round - 1, slot, 0, "s0.window" };
            if (fmt_tape_find(by_mirror, &now) < 0 || fmt_tape_find(by_mirror, &before) < 0) continue;
            fmt_tape *t = copy_tape(by_mirror, "stale.tape", make_stale, &s);
            rpl_classify_options o = strict();
            if (s.n_stale) {
                classified k = classify(t, &o);
                assert_flags(k.r, RPL_FLAG_STALE, "s0.window", round, 1);
                assert_int_equal(failing(k.r) & (GATE(STATE) | GATE(OWN_LOGIT)), GATE(STATE));
                rpl_classify_close(k.c);
                fmt_tape_close(t);
                return;
            }
            fmt_tape_close(t);
        }
    fail_msg("no slot's window went round");
}

/* Multiplies the first element of values by 1.5: far beyond any order of sums. */
static bool spoil_first(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    flips *f = ctx;
    bf16 *x = (bf16 *)(void *)data;
    if (!is_at(r, f->at[0])) return true;
    x[0] = bf16_from_f32(f32_from_bf16(x[0]) * 1.5F + 0.25F);
    f->n_done++;
    return true;
}

static void a_row_that_no_sum_gives_is_a_state_flag(void **state)
{
    (void)state;
    flips f = { .at = { "0/0/main_x" } };
    classified k = changed(spoil_first, &f);
    assert_int_equal(f.n_done, 1);
    assert_int_equal(failing(k.r), GATE(STATE));
    assert_int_equal(k.r->flag[0].kind, RPL_FLAG_ILLEGAL);
    assert_string_equal(k.r->flag[0].value, "main_x");
    rpl_classify_close(k.c);
}

static bool shift_positions(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    flips *f = ctx;
    if (!is_at(r, f->at[0])) return true;
    int32_t *pos = (int32_t *)(void *)data;
    for (int64_t i = 0; i < r->tensor.shape[0]; i++) pos[i]++;
    f->n_done++;
    return true;
}

static void a_gap_in_the_positions_is_a_state_flag(void **state)
{
    (void)state;
    flips f = { .at = { "1/0/pos" } };
    classified k = changed(shift_positions, &f);
    bool found = false;
    assert_int_equal(f.n_done, 1);
    for (size_t i = 0; i < k.r->n_flags; i++)
        found = found || (k.r->flag[i].kind == RPL_FLAG_GAP && k.r->flag[i].round == 1 && k.r->flag[i].slot == 0 &&
                          k.r->flag[i].got == k.r->flag[i].wanted + 1);
    assert_true(found);
    assert_int_equal(failing(k.r), GATE(STATE));
    rpl_classify_close(k.c);
}

/* Another token in the last place of a draft, which no later position comes after. */
static bool other_token(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    flips *f = ctx;
    if (!is_at(r, f->at[0])) return true;
    int32_t *drafts = (int32_t *)(void *)data;
    int64_t last = r->tensor.shape[1] - 1;
    drafts[last] = (drafts[last] + 1) % config.vocab;
    f->n_done++;
    return true;
}

static void a_wrong_token_is_neither_its_own_argmax_nor_explained(void **state)
{
    (void)state;
    flips f = { .at = { "1/-1/drafts" } };
    classified k = changed(other_token, &f);
    assert_int_equal(failing(k.r), GATE(OWN_LOGIT) | GATE(TOKENS));
    assert_flags(k.r, RPL_FLAG_OWN_LOGIT, "drafts", 1, 1);
    assert_int_equal(k.r->worker.n_unexplained, 1);
    assert_int_equal(k.r->n_tokens, 1);
    rpl_classify_close(k.c);
}

/* 1 % more of a stage's attention, in every round. */
static bool scale_attention(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    bf16 *x = (bf16 *)(void *)data;
    int *n = ctx;
    if (strcmp(r->key.name, "s1.attn_out") != 0) return true;
    for (int64_t i = 0; i < fmt_tensor_elems(&r->tensor); i++) x[i] = bf16_from_f32(f32_from_bf16(x[i]) * 1.01F);
    ++*n;
    return true;
}

static void a_perturbed_attention_fails_its_gate_alone(void **state)
{
    (void)state;
    int n = 0;
    classified k = changed(scale_attention, &n);
    assert_true(n > 0);
    assert_int_equal(failing(k.r), GATE(ATTENTION));
    assert_true(k.r->worker.excess[1] > 2 && k.r->worker.excess[0] <= 1 && k.r->worker.excess[2] <= 1);
    rpl_classify_close(k.c);
}

/* Logits of tokens that the round did not draft, lower: other probabilities, the same choices. */
static bool lower_the_others(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    float *x = (float *)(void *)data;
    int *n = ctx;
    cap_value ids = { 0 }, drafts = { 0 };
    const fmt_tape_key ids_key = { r->key.round, FMT_TAPE_NO_SLOT, 0, "head.logits.top_ids" };
    const fmt_tape_key drafts_key = { r->key.round, FMT_TAPE_NO_SLOT, 0, "drafts" };
    if (strcmp(r->key.name, "head.logits.top") != 0) return true;
    OK(cap_joined_get(by_mirror, &ids_key, &ids, e));
    OK(cap_joined_get(by_mirror, &drafts_key, &drafts, e));
    for (int64_t i = 0; i < fmt_tensor_elems(&r->tensor); i++) {
        bool drafted = false;
        for (int64_t k = 0; k < fmt_tensor_elems(&drafts.tensor); k++)
            drafted = drafted || ((const int32_t *)drafts.tensor.data)[k] == ((const int32_t *)ids.tensor.data)[i];
        if (!drafted) x[i] -= 0.25F;
    }
    cap_value_fini(&ids);
    cap_value_fini(&drafts);
    ++*n;
    return true;
}

static void perturbed_logits_fail_kl_alone(void **state)
{
    (void)state;
    int n = 0;
    classified k = changed(lower_the_others, &n);
    assert_true(n > 0);
    assert_int_equal(failing(k.r), GATE(KL));
    rpl_classify_close(k.c);
}

static bool drop_logits_and_windows(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)ctx;
    (void)data;
    return !strstr(r->key.name, "head.") && !strstr(r->key.name, ".window");
}

static void what_was_not_compared_does_not_pass(void **state)
{
    (void)state;
    classified k = changed(drop_logits_and_windows, NULL);
    assert_int_equal(failing(k.r), GATE(STATE) | GATE(OWN_LOGIT) | GATE(ATTENTION) | GATE(KL) | GATE(TOKENS));
    assert_int_equal(k.r->outcome, RPL_OUTCOME_FAIL);
    rpl_classify_close(k.c);
}

/* Spoils the newest row of a window of a dump that has no main_kv. */
static bool without_main_kv(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    row_edit *w = ctx;
    if (strstr(r->key.name, ".main_kv")) return false;
    if (!w->at || !is_at(r, w->at)) return true;
    cap_value pos = { 0 };
    const fmt_tape_key key = { r->key.round, r->key.slot, 0, "pos" };
    OK(cap_joined_get(by_mirror, &key, &pos, e));
    int32_t last = ((const int32_t *)pos.tensor.data)[pos.tensor.shape[0] - 1] % config.window;
    bf16 *row = (bf16 *)(void *)data + (size_t)last * (size_t)config.head_dim;
    row[3] = bf16_from_f32(f32_from_bf16(row[3]) * 2 + 1);
    cap_value_fini(&pos);
    w->n_done++;
    return true;
}

static void windows_are_judged_by_main_x_where_there_is_no_main_kv(void **state)
{
    (void)state;
    row_edit w = { 0 };
    classified k = changed(without_main_kv, &w);
    assert_int_equal(failing(k.r), 0);
    assert_true(k.r->n_windows >= config.n_stages);
    rpl_classify_close(k.c);
    w.at = "1/0/s1.window";
    k = changed(without_main_kv, &w);
    assert_int_equal(w.n_done, 1);
    assert_int_equal(failing(k.r), GATE(STATE));
    assert_flags(k.r, RPL_FLAG_ILLEGAL, "s1.window", 1, 1);
    rpl_classify_close(k.c);
}

/* ---- controls and gates ---- */

static const eng_option_words plain, fused = { .combine = "fused" };

static void an_arm_that_is_the_mirror_is_its_own_band(void **state)
{
    (void)state;
    rpl_classify_options o = strict();
    eng_options packed = run_options("native-packed", 1, "eager");
    o.control = &packed;
    classified k = classify(by_mirror, &o);
    assert_true(k.r->control.ratio <= 1.0001 && k.r->control.gate[RPL_GATE_ATTENTION] <= 1);
    assert_int_equal(k.r->control.n_explained + k.r->control.n_unexplained, 0);
    rpl_classify_close(k.c);
}

static void only_the_named_ops_are_replaced(void **state)
{
    (void)state;
    rpl_classify_options o = strict();
    rpl_substitute sub;
    char set[RPL_SET_BYTES];
    OK(rpl_substitute_parse("s1.ffn=native-packed", &fused, 1, set, &sub, e));
    o.substitute = &sub;
    o.n_substitutes = 1;
    classified k = classify(by_mirror, &o);
    for (size_t i = 0; i < k.r->n_keys; i++) { /* stage 1's experts are read by stage 2's attention */
        const rpl_key *key = &k.r->key[i];
        assert_true(key->control.error[0] == key->mirror_error[0] && key->control.error[1] == key->mirror_error[1]);
    }
    assert_true(k.r->control.excess[2] > 1);
    rpl_classify_close(k.c);
    /* everything by mirror64 is mirror64 */
    OK(rpl_substitute_parse("*=mirror64", &plain, 1, set, &sub, e));
    k = classify(by_mirror, &o);
    assert_true(k.r->control.gate[RPL_GATE_ATTENTION] == 0 && k.r->control.kl == 0);
    rpl_classify_close(k.c);
    REFUSED(rpl_substitute_parse("s1.ffn", &plain, 1, set, &sub, e), ERR_ARG, "wanted SET=ARM");
    REFUSED(rpl_substitute_parse("s1.ffn=cuda", &plain, 1, set, &sub, e), ERR_ARG, "on the CPU");
    OK(rpl_substitute_parse("s9.attn=mirror64", &plain, 1, set, &sub, e));
    REFUSED(rpl_classify_open(shared_run.weights, &o, &k.c, e), ERR_ARG, "no op of that name");
}

static void a_gate_that_the_control_fails_too_is_told_apart(void **state)
{
    (void)state;
    rpl_classify_options o = strict();
    int n = 0;
    rpl_substitute sub;
    char set[RPL_SET_BYTES];
    fmt_tape *t = copy_tape(by_mirror, "changed.tape", scale_attention, &n);
    OK(rpl_substitute_parse("s0.ffn=native-packed", &fused, 1, set, &sub, e));
    o.substitute = &sub;
    o.n_substitutes = 1;
    classified k = classify(t, &o);
    rpl_outcome wanted = k.r->control.excess[1] > 2 ? RPL_OUTCOME_CONTROL_FAILS : RPL_OUTCOME_FAIL;
    assert_int_equal(k.r->gate[RPL_GATE_ATTENTION], wanted);
    assert_int_equal(k.r->outcome, wanted);
    rpl_classify_close(k.c);
    fmt_tape_close(t);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void limits_are_a_file_and_say_when_they_are_others(void **state)
{
    (void)state;
    rpl_gates g;
    rpl_gates_default(&g);
    assert_true(g.limit[RPL_GATE_ATTENTION] == 2 && g.limit[RPL_GATE_KL] == 2 && g.limit[RPL_GATE_STATE] == 0);
    write_text("gates.json", "{\"schema\": 1, \"kl_ratio\": 3.5, \"state_flags\": 0}");
    OK(rpl_gates_read("gates.json", &g, e));
    assert_true(g.limit[RPL_GATE_KL] == 3.5 && g.strict[RPL_GATE_KL] == 2);
    assert_true(g.overridden[RPL_GATE_KL] && !g.overridden[RPL_GATE_STATE] && !g.overridden[RPL_GATE_ATTENTION]);
    write_text("gates.json", "{\"kl\": 3.5}");
    REFUSED(rpl_gates_read("gates.json", &g, e), ERR_INPUT, "found key 'kl'");
    write_text("gates.json", "{\"kl_ratio\": -1}");
    REFUSED(rpl_gates_read("gates.json", &g, e), ERR_INPUT, "0 or more");
    write_text("gates.json", "{\"kl_ratio\": \"2\"}");
    REFUSED(rpl_gates_read("gates.json", &g, e), ERR_INPUT, "wanted a number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_mirror_dumps_is_the_band_itself),
        cmocka_unit_test(float64_sums_have_no_distance),
        cmocka_unit_test(a_sharded_worker_has_no_flag),
        cmocka_unit_test(parts_of_the_rounds_have_all_the_keys),
        cmocka_unit_test(a_flipped_bit_of_a_window_is_a_state_flag),
        cmocka_unit_test(rows_in_each_others_place_are_named),
        cmocka_unit_test(a_missing_row_is_named),
        cmocka_unit_test(a_stale_row_is_named),
        cmocka_unit_test(a_row_that_no_sum_gives_is_a_state_flag),
        cmocka_unit_test(a_gap_in_the_positions_is_a_state_flag),
        cmocka_unit_test(a_wrong_token_is_neither_its_own_argmax_nor_explained),
        cmocka_unit_test(a_perturbed_attention_fails_its_gate_alone),
        cmocka_unit_test(perturbed_logits_fail_kl_alone),
        cmocka_unit_test(windows_are_judged_by_main_x_where_there_is_no_main_kv),
        cmocka_unit_test(what_was_not_compared_does_not_pass),
        cmocka_unit_test(an_arm_that_is_the_mirror_is_its_own_band),
        cmocka_unit_test(only_the_named_ops_are_replaced),
        cmocka_unit_test(a_gate_that_the_control_fails_too_is_told_apart),
        cmocka_unit_test(limits_are_a_file_and_say_when_they_are_others),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
