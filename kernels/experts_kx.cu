/* Routed experts over fragment-ordered FP4: what experts.cu does, with less to do for each byte (experts_kx.cuh). */
#include "kernels/experts_kx.cuh"

/* A launch's operands. A row of x is a row of ids for up, a pick for down. */
struct job {
    const bf16 *x;
    const int32_t *ids;
    int32_t picks, n_picks; /* of a row; of all rows, at most KRN_EXPERT_PICKS_MAX */
    krn_kx_bank bank;
    bf16 *gate, *up;        /* up */
    float *slot;            /* down; NULL: up */
};

/* Grid: a block for every multiprocessor. */
template <bool LARGE>
__global__ static void __launch_bounds__(KX_WARPS_MAX *KRN_WARP, 1)
    kx_kernel(const job j, const skinny_split split, int32_t most)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ kx_routing route;
    __shared__ int16_t lists[KX_WARPS_MAX][KX_ROWS_MAX];
    krn_begin();
    const krn_kx_bank &bank = j.bank;
    const kx_operand in = { j.x, j.slot ? 1 : j.picks, bank };
    const int32_t inter = bank.n / 2;
    const skinny_team team = kx_team(shared, split, most);
    kx_routing_read(j.ids, j.n_picks, bank.n_experts, &route);
    const kx_share own = kx_deal(route.n_used * krn_kx_tiles(bank.n), split, team.index, blockIdx.x);
    kx_stream<false> stream(route, bank, own, team);
    auto store = [&](int64_t pick, int32_t row, float sum) {
        if (j.slot) j.slot[pick * bank.n + row] = skinny_f32(sum);
        else if (row < inter) j.gate[pick * inter + row] = krn_bf16_of(sum);                         /* R2 */
        else j.up[pick * inter + row - inter] = krn_bf16_of(sum);
    };
    kx_walk<LARGE, false>(team, stream, route, j.n_picks, in, own, lists, store, [](int32_t, int32_t) {});
    stream.finish();
}

/* ---- the launchers ---- */

static err_code launch(const char *op, const job &j, krn_stream s, err *e)
{
    skinny_device device = {};
    TRY(skinny_device_get(op, &device, e));
    const skinny_split split = kx_split(&j.bank);
    const kx_grid grid(device, j.n_picks, j.picks, j.bank.n_experts);
    auto *kernel = j.bank.large ? kx_kernel<true> : kx_kernel<false>;
    TRY(skinny_prepare(op, kernel, grid.shared_bytes, e));
    krn_launch(kernel, (unsigned)grid.blocks(krn_kx_tiles(j.bank.n), split), (unsigned)grid.warps * KRN_WARP,
               grid.shared_bytes, s, j, split, grid.most);
    return krn_launched(op, e);
}

extern "C" err_code krn_experts_kx_up(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks,
                                      const krn_kx_bank *w13, bf16 *gate, bf16 *up, krn_stream stream, err *e)
{
    TRY(kx_check("experts_kx_up", x, rows, picks, w13, e));
    if (w13->n % 2) return err_set(e, ERR_ARG, "experts_kx_up: n=%d is not w1 and w3", w13->n);
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, kx_rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks, at = pick * (w13->n / 2);
        const job j = { x + (int64_t)r * w13->k, ids + pick, picks, n * picks, *w13, gate + at, up + at, NULL };
        TRY(launch("experts_kx_up", j, stream, e));
    }
    return ERR_OK;
}

extern "C" err_code krn_experts_kx_down(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                        const krn_kx_bank *w2, float *slot, krn_stream stream, err *e)
{
    TRY(kx_check("experts_kx_down", h, rows, picks, w2, e));
    for (int32_t r = 0, n; r < rows; r += n) {
        n = min(rows - r, kx_rows_at_once(picks));
        const int64_t pick = (int64_t)r * picks;
        const job j = { h + pick * w2->k, ids + pick, picks, n * picks, *w2, NULL, NULL, slot + pick * w2->n };
        TRY(launch("experts_kx_down", j, stream, e));
    }
    return ERR_OK;
}
