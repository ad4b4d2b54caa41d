/* The small languages of the command line: key files, references, export names, taps, lists of rounds, conditions. The
 * first byte chooses; whatever the rest is, it is refused or understood, and what is understood says the same when it is
 * written out and read again. */
#include "capture/joined.h"
#include "capture/recorder.h"
#include "capture/round_list.h"
#include "tui/keys.h"
#include "tui/ref.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void export_name(const char *text)
{
    int32_t round, slot, round2, slot2;
    char name[FMT_TAPE_NAME_BYTES], again[FMT_TAPE_NAME_BYTES], out[CAP_EXPORT_NAME];
    if (!cap_export_parse(text, &round, &slot, name)) return;
    cap_export_name(round, slot, name, out);
    CHECK(strcmp(out, text) == 0);
    CHECK(cap_export_parse(out, &round2, &slot2, again) && round2 == round && slot2 == slot && strcmp(name, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    char *text = malloc(size); /* the rest, as a string */
    CHECK(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    err e = { 0 };
    switch (data[0] % 6) {
    case 0: {
        int32_t *keys = NULL;
        size_t n = 0;
        if (tui_keys_parse(text, size - 1, "keys", &keys, &n, &e) != ERR_OK) CHECK(e.msg[0]);
        free(keys);
        break;
    }
    case 1: {
        tui_ref ref;
        int64_t index[FMT_DIMS_MAX];
        int32_t n;
        if (tui_ref_parse(text, &ref, &e) != ERR_OK) CHECK(e.msg[0]);
        if (tui_index_parse(text, index, &n)) CHECK(n >= 0 && n <= FMT_DIMS_MAX);
        break;
    }
    case 2:
        export_name(text);
        break;
    case 3: {
        const cli_list taps = { 1, { text } };
        if (cap_taps_check(&taps, &e) != ERR_OK) CHECK(e.msg[0]);
        break;
    }
    case 4: {
        cap_round_list l = { 0 };
        if (cap_round_list_parse(text, "--rounds", &l, &e) != ERR_OK) CHECK(e.msg[0] && l.n == 0);
        else (void)cap_round_list_has(&l, INT32_MAX);
        break;
    }
    default: {
        const cli_list when = { 1, { text } };
        if (cap_when_check(&when, "out.tape", &e) != ERR_OK) CHECK(e.msg[0]);
    }
    }
    free(text);
    return 0;
}
