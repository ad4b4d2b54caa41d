/* Runs a fuzz target over kept inputs when libFuzzer is not there: every file of the folders given, then a few mutations of
 * each, from a fixed seed, so that the plain test run also leaves the kept inputs. The more files, the fewer of each. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MUTATIONS = 4000, MUTATIONS_MAX = 200, MUTATIONS_MIN = 2, FILE_MAX = 1 << 22 }; /* of all files; of one */

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13; *s ^= *s >> 7; *s ^= *s << 17;
    return *s;
}

static void run_file(const char *path, int mutations)
{
    FILE *f = fopen(path, "rb");
    if (!f) return;
    uint8_t *data = malloc(FILE_MAX);
    size_t n = fread(data, 1, FILE_MAX, f);
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    uint64_t seed = 0x9e3779b97f4a7c15u ^ n;
    for (int i = 0; i < mutations && n; i++) {
        size_t cut = next(&seed) % 4 == 0 ? next(&seed) % n : n;
        uint8_t *copy = malloc(cut ? cut : 1); /* exact size: ASan sees every byte read past it */
        memcpy(copy, data, cut);
        for (uint64_t k = next(&seed) % 4 + 1; k && cut; k--) copy[next(&seed) % cut] ^= (uint8_t)(1u << next(&seed) % 8);
        LLVMFuzzerTestOneInput(copy, cut);
        free(copy);
    }
    free(data);
}

/* The files of a folder, run where mutations is not negative. Returns their number, -1: no such folder. */
static int each_file(const char *folder, int mutations)
{
    int n = 0;
    DIR *d = opendir(folder);
    if (!d) return -1;
    for (struct dirent *x; (x = readdir(d)); ) {
        char path[4096];
        if (x->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, x->d_name);
        if (mutations >= 0) run_file(path, mutations);
        n++;
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0, mutations = MUTATIONS_MAX;
    for (int i = 1; i < argc; i++) {
        int of = each_file(argv[i], -1);
        if (of < 0) { fprintf(stderr, "%s: no such folder\n", argv[i]); return 1; }
        n += of;
    }
    if (n > 0 && MUTATIONS / n < mutations) mutations = MUTATIONS / n;
    if (mutations < MUTATIONS_MIN) mutations = MUTATIONS_MIN;
    for (int i = 1; i < argc; i++) each_file(argv[i], mutations);
    printf("%d inputs, %d mutations each\n", n, mutations);
    return n > 0 ? 0 : 1; /* a corpus that vanished must not pass */
}
