/* Runs a fuzz target over kept inputs when libFuzzer is not there: every file of the folder given, then a few
 * mutations of each, from a fixed seed, so that the plain test run also leaves the kept inputs. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MUTATIONS = 200, FILE_MAX = 1 << 22 };

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13; *s ^= *s >> 7; *s ^= *s << 17;
    return *s;
}

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return;
    uint8_t *data = malloc(FILE_MAX);
    size_t n = fread(data, 1, FILE_MAX, f);
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    uint64_t seed = 0x9e3779b97f4a7c15u ^ n;
    for (int i = 0; i < MUTATIONS && n; i++) {
        size_t cut = next(&seed) % 4 == 0 ? next(&seed) % n : n;
        uint8_t *copy = malloc(cut ? cut : 1); /* exact size: ASan sees every byte read past it */
        memcpy(copy, data, cut);
        for (uint64_t k = next(&seed) % 4 + 1; k && cut; k--) copy[next(&seed) % cut] ^= (uint8_t)(1u << next(&seed) % 8);
        LLVMFuzzerTestOneInput(copy, cut);
        free(copy);
    }
    free(data);
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) { fprintf(stderr, "%s: no such folder\n", argv[i]); return 1; }
        for (struct dirent *x; (x = readdir(d)); ) {
            char path[4096];
            if (x->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], x->d_name);
            run_file(path);
            n++;
        }
        closedir(d);
    }
    printf("%d inputs, %d mutations each\n", n, MUTATIONS);
    return n > 0 ? 0 : 1; /* a corpus that vanished must not pass */
}
