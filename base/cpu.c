#include "base/cpu.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

int cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* Reads "KEY : value" lines; value is copied without leading blanks and newline. */
static bool proc_line(const char *path, const char *key, char *value, size_t value_bytes)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon) continue;
        char *p = colon + 1;
        while (*p == ' ' || *p == '\t') p++;
        p[strcspn(p, "\n")] = 0;
        snprintf(value, value_bytes, "%s", p);
        found = true;
    }
    fclose(f);
    return found;
}

uint64_t cpu_memory_free_bytes(void)
{
    char v[64];
    uint64_t kib = 0;
    if (!proc_line("/proc/meminfo", "MemAvailable", v, sizeof v) || sscanf(v, "%" SCNu64, &kib) != 1) return 0;
    return kib * 1024;
}

#if defined(__x86_64__)
bool cpu_has_avx2(void)
{
    /* Every AVX2 processor has F16C; clang 14 knows no name for it. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool cpu_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool cpu_has_sse42(void) { return __builtin_cpu_supports("sse4.2"); }
#else
bool cpu_has_avx2(void) { return false; }
bool cpu_has_avx512(void) { return false; }
bool cpu_has_sse42(void) { return false; }
#endif

const char *cpu_name(void)
{
    static char name[128];
    if (!name[0] && !proc_line("/proc/cpuinfo", "model name", name, sizeof name)) strcpy(name, "unknown");
    return name;
}
