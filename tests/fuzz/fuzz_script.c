/* Script files: whatever the bytes are, the file is refused in one line, or every tensor of every round can be read. */
#include "engine/script.h"

#include "memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Small, so that a small file can hold a whole round: a taps row is 64 bytes. */
static eng_config small(void)
{
    eng_config c;
    CHECK(eng_config_preset("tiny", &c));
    c.dim = 32;
    c.n_taps = 1;
    c.window = 4;
    return c;
}

static int64_t touch(const eng_script *s, const eng_config *c)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < eng_script_rounds(s); i++) {
        const eng_round *r = eng_script_at(s, i);
        for (int32_t k = 0; k < r->n_inserts; k++) {
            const eng_insert_event *in = &r->inserts[k];
            for (int64_t t = 0; t < (int64_t)in->rows * c->n_taps * c->dim; t++) sum += in->taps[t];
            for (int32_t t = 0; t < in->rows; t++) sum += in->pos[t];
            CHECK(eng_script_dense(s, in->slot) < eng_script_slots(s));
        }
        for (int32_t b = 0; b < r->batch; b++)
            sum += r->anchors[b] + r->pos[b] + eng_script_dense(s, r->slots[b]) + r->n_out;
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[MEMFILE_PATH];
    eng_script *s;
    err e = { 0 };
    eng_config c = small();
    int fd = memfile(data, size, path);
    if (eng_script_open(path, &c, &s, &e) == ERR_OK) CHECK(touch(s, &c) != INT64_MIN); /* the sum only keeps the reads */
    else CHECK(e.msg[0] && err_exit_status(e.code) == 3);
    eng_script_close(s);
    close(fd);
    return 0;
}
