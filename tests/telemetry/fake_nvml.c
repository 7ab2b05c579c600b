/* The part of NVML that the sampler uses, answering from the file named by FAKE_NVML.
 *
 * The file holds lines "key value", read anew at every call, so that a test can change what a GPU
 * says while it is sampled. "power" is every GPU's, "power.1" only GPU 1's; "power.error" is the
 * code with which the call fails. A field of nvmlDeviceGetFieldValues is "field.74", of type
 * unsigned long long, or of the type that "field.74.type" gives. A key that is not there makes the
 * call fail with NVML_ERROR_NOT_SUPPORTED.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, UNSIGNED_LONG_LONG = 3 };

static int lookup(const char *key, char *value, size_t size) {
    char line[256];
    int found = 0;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (file == NULL) abort();
    while (!found && fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');
        if (space == NULL) continue;
        *space = '\0';
        if (strcmp(line, key) == 0) {
            space[strcspn(space + 1, "\n") + 1] = '\0';
            snprintf(value, size, "%s", space + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static int lookup_gpu(const char *key, int gpu, char *value, size_t size) {
    char own[128];
    snprintf(own, sizeof own, "%s.%d", key, gpu);
    return lookup(own, value, size) || lookup(key, value, size);
}

static int text(const char *key, void *device, char *out, unsigned size) {
    return lookup_gpu(key, (int)(long)device - 1, out, size) ? SUCCESS : NOT_SUPPORTED;
}

static int number(const char *key, void *device, unsigned long long *out) {
    char value[128], failing[128];
    int gpu = (int)(long)device - 1;
    snprintf(failing, sizeof failing, "%s.error", key);
    if (lookup_gpu(failing, gpu, value, sizeof value)) return atoi(value);
    if (!lookup_gpu(key, gpu, value, sizeof value)) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 10);
    return SUCCESS;
}

static int number32(const char *key, void *device, unsigned *out) {
    unsigned long long wide = 0;
    int code = number(key, device, &wide);
    *out = (unsigned)wide;
    return code;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text("driver", NULL, out, size); }
int nvmlDeviceGetCount_v2(unsigned *out) { return number32("count", NULL, out); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    *out = (void *)(long)(index + 1);
    return SUCCESS;
}
int nvmlDeviceGetName(void *d, char *out, unsigned size) { return text("name", d, out, size); }
int nvmlDeviceGetSerial(void *d, char *out, unsigned size) { return text("serial", d, out, size); }
int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { return text("uuid", d, out, size); }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *out) { return number32("limit", d, out); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *out) { return number32("power", d, out); }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out) {
    return sensor == 0 ? number32("temperature", d, out) : INVALID_ARGUMENT;
}
int nvmlDeviceGetClockInfo(void *d, int type, unsigned *out) {
    return number32(type == 1 ? "clock.sm" : type == 2 ? "clock.memory" : "clock.other", d, out);
}
int nvmlDeviceGetUtilizationRates(void *d, unsigned *out) {
    out[1] = 0;
    return number32("utilisation", d, out);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *out) {
    return number("reasons", d, out);
}
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *out) {
    return number("energy", d, out);
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *out) { /* total, free, used */
    out[0] = out[1] = 0;
    return number("used", d, out + 2);
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, code;
    unsigned long long value;
} FieldValue;

int nvmlDeviceGetFieldValues(void *d, int count, FieldValue *values) {
    for (int i = 0; i < count; i++) {
        char key[64], type[64];
        snprintf(key, sizeof key, "field.%u", values[i].field);
        values[i].value = 0;
        values[i].code = number(key, d, &values[i].value);
        snprintf(key, sizeof key, "field.%u.type", values[i].field);
        values[i].type = lookup(key, type, sizeof type) ? atoi(type) : UNSIGNED_LONG_LONG;
    }
    return SUCCESS;
}
