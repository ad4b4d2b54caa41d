#include "engine/noise.h"

#include "formats/tape.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

static float normals[ENG_NOISE_NORMALS];
static pthread_once_t normals_once = PTHREAD_ONCE_INIT;

/* Newton on the distribution function from the middle outwards: the last root is an excellent start for the next. */
static void make_normals(void)
{
    const int half = ENG_NOISE_NORMALS / 2;
    double x = 0;
    for (int i = 0; i < half; i++) {
        double tail = 0.5 - (i + 0.5) / ENG_NOISE_NORMALS; /* mass above x */
        for (int step = 0; step < 6; step++)
            x += (0.5 * erfc(x * M_SQRT1_2) - tail) / (exp(-0.5 * x * x) * 0.3989422804014327);
        normals[half + i] = (float)x;
        normals[half - 1 - i] = (float)-x;
    }
}

const float *eng_noise_normals(void)
{
    pthread_once(&normals_once, make_normals);
    return normals;
}

uint64_t eng_noise_key(uint64_t seed, const char *name)
{
    return eng_noise_mix(fmt_hash64(name, strlen(name)) ^ eng_noise_mix(seed + 1));
}
