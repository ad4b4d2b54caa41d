#include "engine/quantize_hessian.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { BLOCK = ENG_HESSIAN_BLOCK, HADAMARD = 128, TRIES = 10 };
static const double DAMPING = 0.025, MORE_DAMPING = 0.05, TRACE_MIN = 1e-20;

void eng_exl3_hadamard(float x[128])
{
    for (int32_t stride = 1; stride < HADAMARD; stride *= 2)
        for (int32_t i = 0; i < HADAMARD; i += 2 * stride)
            for (int32_t k = i; k < i + stride; k++) {
                const float a = x[k], b = x[k + stride];
                x[k] = a + b;
                x[k + stride] = a - b;
            }
    for (int32_t i = 0; i < HADAMARD; i++) x[i] *= 0x1.6a09e6p-4f; /* 1 / sqrt(128), 0x3DB504F3 */
}

/* ---- H ---- */

/* Row by row into y [rows, n]: signed and transformed. Returns how many are finite; they come first. */
static int64_t turn_rows(const float *x, int64_t rows, int32_t k, int32_t n, uint64_t key, float *y)
{
    int64_t used = 0;
    for (int64_t t = 0; t < rows; t++) {
        float *row = y + used * n;
        bool finite = true;
        memset(row, 0, (size_t)n * sizeof *row);
        for (int32_t i = 0; i < k; i++) {
            row[i] = x[t * k + i] * eng_exl3_sign(key, i);
            finite = finite && isfinite(row[i]);
        }
        if (!finite) continue;
        for (int32_t i = 0; i < n; i += HADAMARD) eng_exl3_hadamard(row + i);
        used++;
    }
    return used;
}

/* The lower triangle of y^T y / rows. */
static void gram(const float *y, int64_t rows, int32_t n, double *h)
{
#pragma omp parallel for schedule(dynamic, BLOCK)
    for (int32_t i = 0; i < n; i++) {
        double *out = h + (int64_t)i * n;
        memset(out, 0, (size_t)n * sizeof *out);
        for (int64_t t = 0; t < rows; t++) {
            const float *row = y + t * n;
            const double by = row[i];
            for (int32_t j = 0; j <= i; j++) out[j] += by * row[j];
        }
        for (int32_t j = 0; j <= i; j++) out[j] /= (double)rows;
    }
}

/* ---- L D L^T ---- */

/* The lower triangle c of d = c c^T, 16 x 16; false: d is not positive. */
static bool cholesky(const double *d, int64_t row, double c[BLOCK][BLOCK])
{
    for (int i = 0; i < BLOCK; i++)
        for (int j = 0; j <= i; j++) {
            double sum = d[i * row + j];
            for (int k = 0; k < j; k++) sum -= c[i][k] * c[j][k];
            if (i == j && !(sum > 0)) return false;
            c[i][j] = i == j ? sqrt(sum) : sum / c[j][j];
        }
    return true;
}

/* p [16] of a row below the block becomes p D^-1. */
static void solve(const double c[BLOCK][BLOCK], double p[BLOCK])
{
    for (int i = 0; i < BLOCK; i++) {
        for (int k = 0; k < i; k++) p[i] -= c[i][k] * p[k];
        p[i] /= c[i][i];
    }
    for (int i = BLOCK - 1; i >= 0; i--) {
        for (int k = i + 1; k < BLOCK; k++) p[i] -= c[k][i] * p[k];
        p[i] /= c[i][i];
    }
}

/* a: the lower triangle of H, used up. panel [16, n] scratch. false: not positive. */
static bool factor(double *a, int32_t n, double *panel, eng_hessian *out)
{
    for (int32_t b = 0; b < n; b += BLOCK) {
        double c[BLOCK][BLOCK] = { 0 };
        double *d = a + (int64_t)b * n + b;
        if (!cholesky(d, n, c)) return false;
        for (int i = 0; i < BLOCK; i++)
            for (int j = 0; j < BLOCK; j++)
                out->pivot[((int64_t)b + i) * BLOCK + j] = (float)(i >= j ? d[i * (int64_t)n + j] : d[j * (int64_t)n + i]);
        for (int32_t i = b + BLOCK; i < n; i++)
            for (int k = 0; k < BLOCK; k++) panel[(int64_t)k * n + i] = a[(int64_t)i * n + b + k];
#pragma omp parallel for schedule(dynamic, BLOCK)
        for (int32_t i = b + BLOCK; i < n; i++) {
            double *row = a + (int64_t)i * n, l[BLOCK];
            memcpy(l, row + b, sizeof l);
            solve((const double(*)[BLOCK])c, l);
            for (int k = 0; k < BLOCK; k++) out->lower[(int64_t)i * n + b + k] = (float)l[k];
            for (int k = 0; k < BLOCK; k += 4) {
                const double *p = panel + (int64_t)k * n;
                for (int32_t j = b + BLOCK; j <= i; j++)
                    row[j] -= l[k] * p[j] + l[k + 1] * p[n + j] + l[k + 2] * p[2 * (int64_t)n + j] +
                              l[k + 3] * p[3 * (int64_t)n + j];
            }
        }
    }
    return true;
}

/* ---- all of it ---- */

static eng_hessian *hessian_make(int32_t n)
{
    eng_hessian *h = mem_alloc(1, sizeof *h);
    if (!h) return NULL;
    h->n = n;
    h->lower = mem_alloc_aligned((size_t)n * (size_t)n, sizeof *h->lower);
    h->pivot = mem_alloc_aligned((size_t)n * BLOCK, sizeof *h->pivot);
    if (h->lower && h->pivot) return h;
    eng_hessian_close(h);
    return NULL;
}

void eng_hessian_close(eng_hessian *h)
{
    if (!h) return;
    free(h->lower);
    free(h->pivot);
    free(h);
}

err_code eng_hessian_open(const float *x, int64_t rows, int32_t k, uint64_t sign_key, eng_hessian **out, err *e)
{
    const int32_t n = (k + HADAMARD - 1) / HADAMARD * HADAMARD;
    *out = NULL;
    if (rows == 0) return ERR_OK;
    err_code rc = ERR_OK;
    bool good = false;
    double trace = 0;
    float *y = mem_alloc_aligned((size_t)rows * (size_t)n, sizeof *y);
    double *h = mem_alloc_aligned((size_t)n * (size_t)n, sizeof *h);
    double *a = mem_alloc_aligned((size_t)n * (size_t)n, sizeof *a);
    double *panel = mem_alloc_aligned((size_t)n, BLOCK * sizeof *panel);
    eng_hessian *made = hessian_make(n);
    if (!y || !h || !a || !panel || !made) {
        rc = err_set(e, ERR_NOMEM, "no memory for the Hessian of %d inputs", k);
        goto out;
    }
    const int64_t used = turn_rows(x, rows, k, n, sign_key, y);
    if (used == 0) goto out;
    gram(y, used, n, h);
    for (int32_t i = 0; i < n; i++) trace += h[(int64_t)i * n + i];
    if (!isfinite(trace) || trace < TRACE_MIN * k) goto out;
    for (int32_t i = 0; i < n; i++) h[(int64_t)i * n + i] += DAMPING * trace / k;
    for (int tries = 0; tries <= TRIES && !good; tries++) {
        memcpy(a, h, (size_t)n * (size_t)n * sizeof *a);
        for (int32_t i = 0; i < n; i++) a[(int64_t)i * n + i] += tries * MORE_DAMPING * trace / k;
        good = factor(a, n, panel, made);
    }
    if (good) *out = made;
out:
    if (!good) eng_hessian_close(made);
    free(y);
    free(h);
    free(a);
    free(panel);
    return rc;
}
