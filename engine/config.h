/* The model's configuration: config.json of a checkpoint folder, checked.
 *
 * Every dimension in the project comes from here; nothing assumes the official sizes. Keys are listed in config.c, all are
 * needed, others are ignored. */
#ifndef ENGINE_CONFIG_H
#define ENGINE_CONFIG_H

#include "formats/json.h"

enum { ENG_TAPS_MAX = 8, ENG_STAGES_MAX = 8, ENG_HC_MAX = 8, ENG_BLOCK_MAX = 16, ENG_ACTIVE_MAX = 16, ENG_RANKS_MAX = 8 };

typedef struct eng_config {
    int32_t vocab;        /* vocab_size                 */
    int32_t dim;          /* dim                        */
    int32_t n_layers;     /* of the target              */
    int32_t n_stages;     /* n_mtp_layers               */
    int32_t block;        /* dspark_block_size: rows a slot contributes to a step */
    int32_t noise_id;     /* dspark_noise_token_id      */
    int32_t n_taps;       /* dspark_target_layer_ids    */
    int32_t tap_layer[ENG_TAPS_MAX];
    int32_t markov_rank;  /* dspark_markov_rank         */
    int32_t n_experts;    /* dspark_n_routed_experts    */
    int32_t n_active;     /* dspark_n_activated_experts */
    int32_t inter;        /* moe_inter_dim              */
    int32_t n_heads, head_dim, rope_dim, q_lora; /* n_heads head_dim rope_head_dim q_lora_rank */
    int32_t o_groups, o_lora;                    /* o_groups o_lora_rank */
    int32_t window;       /* window_size: ring rows     */
    int32_t hc;           /* hc_mult: copies of the residual stream */
    int32_t sinkhorn_iters;                      /* hc_sinkhorn_iters */
    double norm_eps, hc_eps, route_scale, swiglu_limit, rope_theta;
} eng_config;

/* Reads FOLDER/config.json. ERR_INPUT: folder is none, and the message says what it is. ERR_FORMAT / ERR_INPUT name the
 * file, the key, found and wanted: a missing key, a wrong type, a dimension that the formats cannot hold (what is quantised
 * per 32 must divide by 32, heads by groups, rope_head_dim even and at most head_dim …), a score_func other than
 * sqrtsoftplus, dtype other than fp8, expert_dtype other than fp4. */
MUST_USE err_code eng_config_read(const char *folder, eng_config *out, err *e);
/* The same from an object; where names it in errors. */
MUST_USE err_code eng_config_parse(const json_t *object, const char *where, eng_config *out, err *e);
/* The object that eng_config_parse accepts (new reference; NULL: no memory). */
json_t *eng_config_json(const eng_config *c);
/* Presets "tiny", "mid" (every dimension a multiple of 128) and "official". false: no such preset. */
bool eng_config_preset(const char *name, eng_config *out);
bool eng_config_equal(const eng_config *a, const eng_config *b);

#endif
