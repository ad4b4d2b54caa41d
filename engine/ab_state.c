/* What the card says of itself, by the driver's own library. It is looked for at run time: a machine may have a card
 * without it, and then nothing is known. */
#include "engine/ab.h"

#include <dlfcn.h>
#include <string.h>

/* NVML's own numbers. */
enum { NVML_OK = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_TEMPERATURE_GPU = 0 };

typedef struct nvml {
    int (*init)(void);
    int (*find)(const char *bus, void **device);
    int (*clock)(void *device, int which, unsigned int *mhz);
    int (*power)(void *device, unsigned int *milliwatts);
    int (*temperature)(void *device, int which, unsigned int *celsius);
} nvml;

/* A function that dlsym gives is copied as bytes: C has no cast for it. */
static bool load(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Loaded once and kept. */
static bool open_nvml(nvml *out)
{
    static nvml n;
    static bool tried, here;
    if (!tried) {
        tried = true;
        void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        here = library && load(library, "nvmlInit_v2", &n.init) &&
               load(library, "nvmlDeviceGetHandleByPciBusId_v2", &n.find) &&
               load(library, "nvmlDeviceGetClockInfo", &n.clock) && load(library, "nvmlDeviceGetPowerUsage", &n.power) &&
               load(library, "nvmlDeviceGetTemperature", &n.temperature) && n.init() == NVML_OK;
    }
    *out = n;
    return here;
}

void ab_state_read(ab_state *out)
{
    nvml n;
    krn_device_info info;
    void *device;
    unsigned int sm, memory, milliwatts, celsius;
    *out = (ab_state){ 0 };
    if (krn_device_info_get(0, &info, NULL) != ERR_OK || !open_nvml(&n) || n.find(info.bus, &device) != NVML_OK) return;
    if (n.clock(device, NVML_CLOCK_SM, &sm) != NVML_OK || n.clock(device, NVML_CLOCK_MEMORY, &memory) != NVML_OK ||
        n.power(device, &milliwatts) != NVML_OK || n.temperature(device, NVML_TEMPERATURE_GPU, &celsius) != NVML_OK)
        return;
    *out = (ab_state){ true, (int32_t)sm, (int32_t)memory, (int32_t)celsius, milliwatts * 1e-3 };
}
