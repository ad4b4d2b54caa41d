#include "tui/export.h"

#include "base/mem.h"
#include "base/outfile.h"
#include "base/utf8.h"
#include "capture/npy.h"
#include "formats/safetensors.h"
#include "tui/loaded.h"
#include "tui/ref.h"

#include <ctype.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum form { FORM_NPY, FORM_SAFETENSORS, FORM_CSV, FORM_TXT, FORM_COUNT } form;
static const char *const ENDING[FORM_COUNT] = { ".npy", ".safetensors", ".csv", ".txt" };

enum { PATH_BYTES = 512 };

/* A file on its way. Of a value: tapes and key; else text. */
struct tui_export {
    tui_work *work;
    form form;
    char path[PATH_BYTES], name[FMT_TAPE_NAME_BYTES];
    fmt_tape_key key;
    int n;                                    /* tapes */
    const fmt_tape *tape[TUI_ARMS_MAX];
    char letter[TUI_ARMS_MAX], arm[TUI_ARMS_MAX][64];
    tui_text text;
    uint64_t bytes;
    err_code rc;
    err e;
};

static char part_path[PATH_BYTES + 8]; /* what is being written, for a handler; "": nothing is */

void tui_export_abandon(void)
{
    if (part_path[0]) unlink(part_path);
}

static bool ends_with(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n > m && strcmp(path + n - m, ending) == 0;
}

static int npy_arm(const tui_app *app, const cap_name *v)
{
    if (app->alone >= 0) return app->alone;
    return tui_suspect_having(app, v) == TUI_B ? app->b : app->a;
}

void tui_export_name(tui_app *app, char *buf, size_t bytes)
{
    const tui_request *r = tui_at_request(app);
    const cap_name *v = tui_at_value(app);
    const tui_screen *s = tui_app_screen(app);
    char slot[24] = "", arm[4] = "", round[24] = "";
    bool of_round = s->bit & (TUI_ON_PROGRAM | TUI_ON_ROUTING | TUI_ON_TOKENS), is_value = s->bit == TUI_ON_VALUE && v;
    int32_t number = is_value ? v->slot : of_round && r ? r->slot : FMT_TAPE_NO_SLOT;
    if (number != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, "-slot%d", number);
    if (!is_value) {
        if (of_round && r) snprintf(round, sizeof round, "-r%d", r->round);
        snprintf(buf, bytes, "%s%s%s.%s", s->title, round, slot, s->csv ? "csv" : "txt");
        buf[0] = (char)tolower((unsigned char)buf[0]);
        return;
    }
    if (app->arms->n > 1) snprintf(arm, sizeof arm, "-%c", 'A' + npy_arm(app, v));
    snprintf(buf, bytes, "r%d%s-%s%s.npy", r->round, slot, v->name, arm);
    for (char *p = buf; *p; p++)
        if (*p == '/') *p = '_'; /* an import's names may hold one, and this is no folder */
}

/* ---- the work ---- */

/* Bytes of one array, in a file of its own. */
static err_code write_npy(tui_export *x, err *e)
{
    cap_value v = { 0 };
    uint8_t head[CAP_NPY_HEADER];
    outfile *f = NULL;
    err_code rc = cap_joined_get(x->tape[0], &x->key, &v, e);
    if (rc == ERR_OK) rc = outfile_open(x->path, &f, e);
    if (rc == ERR_OK) {
        outfile_write(f, head, cap_npy_header(&v.tensor, head));
        outfile_write(f, v.tensor.data, fmt_tensor_bytes(&v.tensor));
        rc = outfile_commit(f, e);
    }
    cap_value_fini(&v);
    return rc;
}

/* What each array is: {"A": "a.tape:3/-/s0.attn_out, native-packed", ...}. */
static json_t *metadata_of(const tui_export *x)
{
    json_t *all = json_object();
    for (int i = 0; all && i < x->n; i++) {
        char name[2] = { x->letter[i], 0 }, slot[16] = "-", text[1024];
        if (x->key.slot != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, "%d", x->key.slot);
        snprintf(text, sizeof text, "%s:%d/%s/%s, %s", fmt_tape_path(x->tape[i]), x->key.round, slot, x->name, x->arm[i]);
        bool plain = utf8_valid(text);
        for (char *p = text; !plain && *p; p++) *p = *p & 0x80 ? '?' : *p; /* JSON holds no other bytes */
        json_object_set_new(all, name, json_string(text));
    }
    return all;
}

/* The arms that have the value, joined; at least one does. */
static err_code read_all(tui_export *x, cap_value v[TUI_ARMS_MAX], err *e)
{
    int n = 0;
    err_code first = ERR_OK;
    for (int i = 0; i < x->n; i++) {
        err why = { 0 };
        err_code rc = cap_joined_get(x->tape[i], &x->key, &v[n], &why);
        if (rc != ERR_OK && first == ERR_OK) first = err_set(e, rc, "%s", why.msg);
        if (rc != ERR_OK) continue;
        x->tape[n] = x->tape[i];
        x->letter[n] = x->letter[i];
        if (n != i) memcpy(x->arm[n], x->arm[i], sizeof x->arm[n]);
        n++;
    }
    x->n = n;
    return n ? ERR_OK : first;
}

static err_code write_safetensors(tui_export *x, const cap_value *v, err *e)
{
    fmt_safetensors_decl decl[TUI_ARMS_MAX];
    char name[TUI_ARMS_MAX][2];
    fmt_safetensors_writer *w;
    json_t *metadata = metadata_of(x);
    for (int i = 0; i < x->n; i++) {
        const fmt_tensor *t = &v[i].tensor;
        name[i][0] = x->letter[i];
        name[i][1] = 0;
        decl[i] = (fmt_safetensors_decl){ .name = name[i], .dtype = t->dtype, .ndim = t->ndim };
        memcpy(decl[i].shape, t->shape, sizeof decl[i].shape);
    }
    err_code rc = fmt_safetensors_create(x->path, decl, (size_t)x->n, metadata, &w, e);
    json_decref(metadata);
    if (rc != ERR_OK) return rc;
    for (int i = 0; i < x->n; i++) fmt_safetensors_put(w, v[i].tensor.data, fmt_tensor_bytes(&v[i].tensor));
    return fmt_safetensors_finish(w, e);
}

static uint64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* index, A, B, ..., and of two of one shape B-A and ULPs. */
static err_code write_elements(tui_export *x, const cap_value *v, const atomic_bool *cancel, err *e)
{
    outfile *f;
    char line[512], index[128];
    const fmt_tensor *t = &v[0].tensor;
    int n = x->n;
    while (n > 1 && !tui_same_shape(t, &v[n - 1].tensor)) n--;
    bool pair = n == 2;
    TRY(outfile_open(x->path, &f, e));
    size_t at = (size_t)snprintf(line, sizeof line, "index");
    for (int i = 0; i < n; i++) at += (size_t)snprintf(line + at, sizeof line - at, ",%c", x->letter[i]);
    snprintf(line + at, sizeof line - at, "%s", pair ? ",difference,ulp\n" : "\n");
    outfile_write(f, line, strlen(line));
    for (int64_t k = 0; k < fmt_tensor_elems(t) && !atomic_load(cancel); k++) {
        double d[TUI_ARMS_MAX] = { 0 };
        at = (size_t)snprintf(line, sizeof line, "\"%s\"", tui_index_text(t, k, index));
        for (int i = 0; i < n; i++) {
            d[i] = rpl_element(t->dtype, v[i].tensor.data, k);
            at += (size_t)snprintf(line + at, sizeof line - at, ",%.9g", d[i]);
        }
        if (pair) {
            rpl_metrics m;
            size_t elem = fmt_dtype_bytes(t->dtype);
            rpl_metrics_of(t->dtype, (const uint8_t *)v[0].tensor.data + (size_t)k * elem,
                           (const uint8_t *)v[1].tensor.data + (size_t)k * elem, 1, &m);
            at += (size_t)snprintf(line + at, sizeof line - at, ",%.9g,", d[1] - d[0]);
            at += (size_t)snprintf(line + at, sizeof line - at, m.max_ulp == UINT64_MAX ? "nan" : "%" PRIu64, m.max_ulp);
        }
        line[at++] = '\n';
        outfile_write(f, line, at);
    }
    if (atomic_load(cancel)) {
        outfile_abandon(f);
        return ERR_OK;
    }
    return outfile_commit(f, e);
}

static err_code write_text(tui_export *x, err *e)
{
    outfile *f;
    if (x->text.failed) return err_set(e, ERR_NOMEM, "no memory for the text");
    TRY(outfile_open(x->path, &f, e));
    outfile_write(f, x->text.text, x->text.n);
    return outfile_commit(f, e);
}

static void write_file(void *ctx, const atomic_bool *cancel)
{
    tui_export *x = ctx;
    cap_value v[TUI_ARMS_MAX] = { 0 };
    if (x->n == 0) x->rc = write_text(x, &x->e);
    else if (x->form == FORM_NPY) x->rc = write_npy(x, &x->e);
    else {
        x->rc = read_all(x, v, &x->e);
        if (x->rc == ERR_OK)
            x->rc = x->form == FORM_CSV ? write_elements(x, v, cancel, &x->e) : write_safetensors(x, v, &x->e);
        for (int i = 0; i < TUI_ARMS_MAX; i++) cap_value_fini(&v[i]);
    }
    x->bytes = file_bytes(x->path);
}

/* ---- begin and end ---- */

static void add_tape(tui_app *app, tui_export *x, int arm)
{
    x->tape[x->n] = app->arms->tape[arm];
    x->letter[x->n] = (char)('A' + arm);
    snprintf(x->arm[x->n++], sizeof x->arm[0], "%s", tui_arms_name(app->arms, arm));
}

/* Which tapes' value it is: of one arm for .npy, else of A, B and then the others. */
static err_code choose_value(tui_app *app, tui_export *x, err *e)
{
    const tui_request *r = tui_at_request(app);
    const cap_name *v = tui_at_value(app);
    if (!r || !v)
        return err_set(e, ERR_ARG, "%s: found no value chosen, wanted one: Program or Value", x->path);
    snprintf(x->name, sizeof x->name, "%s", v->name);
    x->key = (fmt_tape_key){ r->round, v->slot, 0, x->name };
    if (x->form == FORM_NPY) {
        add_tape(app, x, npy_arm(app, v));
        return ERR_OK;
    }
    add_tape(app, x, app->a);
    if (app->arms->n > 1) add_tape(app, x, app->b);
    for (int i = 0; i < app->arms->n; i++)
        if (i != app->a && i != app->b) add_tape(app, x, i);
    return ERR_OK;
}

/* Takes the '!' off the name; without one nothing may be there, nor be on its way there. */
static err_code check_path(tui_export *x, err *e)
{
    char part[sizeof x->path + 8];
    size_t n = strlen(x->path);
    bool replace = n > 0 && x->path[n - 1] == '!';
    if (replace) x->path[n - 1] = 0;
    snprintf(part, sizeof part, "%s.part", x->path);
    bool there = access(x->path, F_OK) == 0, coming = access(part, F_OK) == 0;
    if (replace || (!there && !coming)) return ERR_OK;
    return err_set(e, ERR_ARG, "%s exists: wanted another name, or %s! to replace it", there ? x->path : part, x->path);
}

static err_code prepare(tui_app *app, tui_export *x, err *e)
{
    const tui_screen *s = tui_app_screen(app);
    int f = 0;
    TRY(check_path(x, e));
    while (f < FORM_COUNT && !ends_with(x->path, ENDING[f])) f++;
    if (f == FORM_COUNT)
        return err_set(e, ERR_ARG, "%s: found no ending that is known, wanted .npy .safetensors .csv .txt", x->path);
    x->form = (form)f;
    if (x->form == FORM_NPY || x->form == FORM_SAFETENSORS || (x->form == FORM_CSV && s->bit == TUI_ON_VALUE))
        return choose_value(app, x, e);
    if (x->form == FORM_CSV && !s->csv) return err_set(e, ERR_ARG, "%s: %s is no table, wanted .txt", x->path, s->title);
    if (x->form == FORM_CSV) s->csv(app, tui_app_state(app), &x->text);
    else {
        char *screen = tui_canvas_text(tui_app_draw(app));
        if (screen) tui_text_add(&x->text, screen, strlen(screen));
        x->text.failed = x->text.failed || !screen;
        free(screen);
    }
    return ERR_OK;
}

err_code tui_export_begin(tui_app *app, const char *path, err *e)
{
    if (app->export) return err_set(e, ERR_ARG, "%s is still being written", app->export->path);
    tui_export *x = mem_alloc(1, sizeof *x);
    if (!x) return err_set(e, ERR_NOMEM, "no memory for the file");
    snprintf(x->path, sizeof x->path, "%s", path);
    err_code rc = prepare(app, x, e);
    if (rc == ERR_OK) {
        snprintf(part_path, sizeof part_path, "%s.part", x->path);
        rc = tui_work_begin(tui_is_threaded(app), write_file, x, &x->work, e);
    }
    if (rc != ERR_OK) tui_export_end(x);
    else {
        app->export = x;
        tui_export_poll(app);
    }
    return rc;
}

void tui_export_poll(tui_app *app)
{
    tui_export *x = app->export;
    if (!x || !tui_work_done(x->work)) return;
    if (x->rc != ERR_OK) tui_say(app, "%s", x->e.msg);
    else if (x->form == FORM_NPY && app->arms->n > 1)
        tui_say(app, "wrote %s of %c, %s: %" PRIu64 " bytes", x->path, x->letter[0], x->arm[0], x->bytes);
    else tui_say(app, "wrote %s, %" PRIu64 " bytes", x->path, x->bytes);
    app->export = NULL;
    tui_export_end(x);
}

void tui_export_end(tui_export *x)
{
    if (!x) return;
    tui_work_cancel(x->work);
    tui_work_end(x->work);
    part_path[0] = 0;
    tui_text_fini(&x->text);
    free(x);
}
