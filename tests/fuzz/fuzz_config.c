/* config.json: whatever the text is, it is refused, or gives a config that everything built on it can hold. */
#include "engine/config.h"
#include "engine/inventory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *object = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    eng_config c, again;
    err e = { 0 };
    err_code rc = eng_config_parse(object, "config.json", &c, &e);
    json_decref(object);
    if (rc != ERR_OK) {
        CHECK(rc == ERR_INPUT && e.msg[0]);
        return 0;
    }
    json_t *out = eng_config_json(&c);
    CHECK(out && eng_config_parse(out, "again", &again, &e) == ERR_OK && eng_config_equal(&c, &again));
    json_decref(out);
    for (int32_t ranks = 1; ranks <= ENG_RANKS_MAX; ranks++) {
        if (eng_cut_check(&c, ranks, &e) != ERR_OK) continue;
        for (int id = 0; id < ENG_W_COUNT; id++) CHECK(eng_cut_range(&c, id, ranks - 1, ranks).count > 0);
    }
    if (c.n_experts * c.n_stages > 64) return 0; /* the list is as long as the config is large */
    eng_tensor_spec *spec;
    size_t n;
    CHECK(eng_inventory(&c, &spec, &n, &e) == ERR_OK && n > 0);
    free(spec);
    return 0;
}
