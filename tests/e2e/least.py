"""A model as small as a config may be: for tests that are about what is around the arithmetic."""
import json, os

CONFIG = dict(vocab_size=64, dim=32, moe_inter_dim=32, n_layers=2, n_mtp_layers=1, dspark_block_size=2,
              dspark_noise_token_id=63, dspark_markov_rank=4, dspark_n_routed_experts=2, dspark_n_activated_experts=1,
              n_heads=1, q_lora_rank=32, head_dim=32, rope_head_dim=2, o_groups=1, o_lora_rank=32, window_size=4, hc_mult=2,
              hc_sinkhorn_iters=2, dspark_target_layer_ids=[1], route_scale=1.5, swiglu_limit=10.0, norm_eps=1e-20,
              rope_theta=10000.0, hc_eps=1e-6, score_func='sqrtsoftplus', dtype='fp8', expert_dtype='fp4')


def least(p):
    """The folder 'least'."""
    if not os.path.exists('least'):
        with open('least.json', 'w') as f:
            json.dump(CONFIG, f)
        p.ok('synth', 'least', '--config', 'least.json', '--seed', 3)
