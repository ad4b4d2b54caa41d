#include "replay/reduce.h"

#include "base/mem.h"

typedef struct source { const char *name; const unsigned char *data; size_t bytes; } source;
#include "reduce_sources_table.h"

err_code rpl_bundle_sources(rpl_bundle *b, err *e)
{
    for (size_t i = 0; i < COUNT_OF(SOURCES); i++) {
        const source *s = &SOURCES[i];
        const char *name = strcmp(s->name, "replay/reduce_bundle.h") == 0 ? "bundle.h" : s->name;
        TRY(rpl_bundle_write(b, name, NULL, 0, s->data, s->bytes, e));
    }
    return ERR_OK;
}
