/* The part of NVML that the sampler uses, answering from the script named by FAKE_NVML.
 *
 * A script has lines "key value", and is read again whenever it was replaced, so that a test can
 * change what a GPU says while it is sampled. "power" is every GPU's, "power.1" only GPU 1's. A key
 * that is not there makes its call fail with NVML_ERROR_NOT_SUPPORTED.
 *
 * Numbers are functions of time, which counts in seconds from the key "epoch" (Unix time):
 *
 *     79483                    a constant
 *     ramp START SLOPE         START + SLOPE * t
 *     square LOW HIGH PERIOD   LOW in the first half of each period, HIGH in the second
 *     count START RATE BITS RESET_AT   goes round at 2^BITS; from RESET_AT on, from 0 (optional)
 *     integral START           of "power", exactly
 *
 * "power.error 15 2.5 4" makes the call fail with code 15 from 2.5 s to 4 s (both optional), and
 * "gpu.error" every call about the GPU. "power" is the truth. The sensor shows its mean over the
 * last "sensor.window" seconds, anew every "sensor.every"; the driver's samples are the mean over
 * the "samples.every" before each multiple of it, and with
 * "samples.again" all that are kept are told at each call. A field is "field.74", of type unsigned
 * long long or of "field.74.type", and answers at the scope 0 or "field.74.scope" alone. "gpm.5" is
 * a metric of GPM, of which a test hears the mean between two samples. "event GPU
 * TYPE DATA AT" is what nvmlEventSetWait tells from AT on, where the GPU was registered for the
 * type; type 0 is told always.
 *
 * What is set lies beside the script, in "<script>.set", for all processes: a line "limit.0 500000"
 * or "locked.0 1200" (0: unlocked) for each call, in their order. "set.limit.error" and
 * "set.clocks.error" make such calls fail. A call whose line is in "<script>.hang" returns when that
 * file is gone.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15,
    UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3, KEPT_SAMPLES = 119, LONGEST = 128, MOST_LINES = 512
};

static struct { unsigned hash; char key[LONGEST], value[LONGEST]; } lines[MOST_LINES];
static int line_count, events_told;
static struct stat read_from;
static double set_time;

/* Time as the test has it, or the real time after 0; not a part of NVML. */
void fake_nvml_set_time(double unix_s) { set_time = unix_s; }

static unsigned hash_of(const char *text) {
    unsigned hash = 5381;
    for (; *text; text++) hash = hash * 33 + (unsigned char)*text;
    return hash;
}

static void read_script(void) {
    struct stat now;
    char line[2 * LONGEST];
    const char *path = getenv("FAKE_NVML");
    FILE *file;
    if (path == NULL || stat(path, &now) != 0) abort();
    if (now.st_ino == read_from.st_ino && now.st_mtim.tv_nsec == read_from.st_mtim.tv_nsec &&
        now.st_mtim.tv_sec == read_from.st_mtim.tv_sec)
        return;
    if ((file = fopen(path, "r")) == NULL) abort();
    for (line_count = 0; fgets(line, sizeof line, file); line_count++) {
        if (line_count == MOST_LINES) abort();
        if (sscanf(line, "%127s %127[^\n]", lines[line_count].key, lines[line_count].value) != 2)
            abort();
        lines[line_count].hash = hash_of(lines[line_count].key);
    }
    fclose(file);
    read_from = now;
}

static const char *lookup(const char *key) {
    unsigned hash = hash_of(key);
    for (int i = 0; i < line_count; i++)
        if (lines[i].hash == hash && strcmp(lines[i].key, key) == 0) return lines[i].value;
    return NULL;
}

static const char *lookup_gpu(const char *key, int gpu) {
    char own[LONGEST];
    const char *value;
    snprintf(own, sizeof own, "%s.%d", key, gpu);
    value = lookup(own);
    return value ? value : lookup(key);
}

static double setting(const char *key, int gpu, double otherwise) {
    const char *value = lookup_gpu(key, gpu);
    return value ? atof(value) : otherwise;
}

static double unix_time(void) {
    struct timespec now;
    if (set_time != 0) return set_time;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double script_time(void) { return unix_time() - setting("epoch", -1, 0); }

/* A waveform's value at t, and its integral from 0 to t. */
static double value_at(const char *wave, double t) {
    double a, b, c;
    if (sscanf(wave, "ramp %lf %lf", &a, &b) == 2) return a + b * t;
    if (sscanf(wave, "square %lf %lf %lf", &a, &b, &c) == 3)
        return t / c - floor(t / c) < 0.5 ? a : b;
    return atof(wave);
}

static double integral_to(const char *wave, double t) {
    double a, b, c;
    if (sscanf(wave, "ramp %lf %lf", &a, &b) == 2) return a * t + b * t * t / 2;
    if (sscanf(wave, "square %lf %lf %lf", &a, &b, &c) == 3) {
        double periods = floor(t / c), rest = t - periods * c;
        double low = fmin(rest, c / 2), high = rest - low;
        return periods * c / 2 * (a + b) + low * a + high * b;
    }
    return atof(wave) * t;
}

static double mean_before(const char *wave, double t, double window) {
    return window > 0 ? (integral_to(wave, t) - integral_to(wave, t - window)) / window
                      : value_at(wave, t);
}

static double shown_power(const char *wave, int gpu, double t) {
    double update = setting("sensor.every", gpu, 0);
    /* A reading on the very edge is the new one, whatever the last bits of Unix time say. */
    if (update > 0) t = floor(t / update + 1e-4) * update;
    return mean_before(wave, t, setting("sensor.window", gpu, 0));
}

static unsigned long long number_at(const char *wave, int gpu, double t) {
    double start, rate, bits, reset = INFINITY;
    const char *power = lookup_gpu("power", gpu);
    if (sscanf(wave, "count %lf %lf %lf %lf", &start, &rate, &bits, &reset) >= 3)
        return (unsigned long long)fmod(
            t < reset ? start + floor(rate * t) : floor(rate * (t - reset)), pow(2, bits));
    if (sscanf(wave, "integral %lf", &start) == 1)
        return (unsigned long long)(start + integral_to(power, t));
    if (strchr(wave, ' ') == NULL) return strtoull(wave, NULL, 10);
    return (unsigned long long)llround(value_at(wave, t));
}

/* The code with which a call fails at this time, or SUCCESS. */
static int failure(const char *key, int gpu) {
    char failing[LONGEST];
    const char *value;
    double from = -INFINITY, until = INFINITY, t = script_time();
    int code = SUCCESS;
    snprintf(failing, sizeof failing, "%s.error", key);
    if ((value = lookup_gpu(failing, gpu)) == NULL) return SUCCESS;
    sscanf(value, "%d %lf %lf", &code, &from, &until);
    return from <= t && t < until ? code : SUCCESS;
}

static int index_of(void *device) { return (int)(long)device - 1; }

static int refusal(const char *key, int gpu) {
    int code;
    read_script();
    code = failure("gpu", gpu);
    return code ? code : failure(key, gpu);
}

static int text(const char *key, void *device, char *out, unsigned size) {
    const char *value;
    int code = refusal(key, index_of(device));
    if (code) return code;
    if ((value = lookup_gpu(key, index_of(device))) == NULL) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return SUCCESS;
}

static int number(const char *key, void *device, unsigned long long *out) {
    const char *wave;
    int gpu = index_of(device), code = refusal(key, gpu);
    if (code) return code;
    if ((wave = lookup_gpu(key, gpu)) == NULL) return NOT_SUPPORTED;
    *out = number_at(wave, gpu, script_time());
    return SUCCESS;
}

static int number32(const char *key, void *device, unsigned *out) {
    unsigned long long wide = 0;
    int code = number(key, device, &wide);
    *out = (unsigned)wide;
    return code;
}

static int pair32(const char *key, void *device, unsigned *first, unsigned *second) {
    *second = 0;
    return number32(key, device, first);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_NVML") == NULL) return DRIVER_NOT_LOADED;
    memset(&read_from, 0, sizeof read_from);
    events_told = 0;
    read_script();
    return failure("init", -1);
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == GPU_IS_LOST ? "GPU is lost" :
           "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text("driver", NULL, out, size); }
int nvmlDeviceGetCount_v2(unsigned *out) { return number32("count", NULL, out); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    *out = (void *)(long)(index + 1);
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    for (int gpu = 0; gpu < (int)setting("count", -1, 0); gpu++) {
        const char *own = lookup_gpu("uuid", gpu);
        if (own != NULL && strcmp(own, uuid) == 0) {
            *out = (void *)(long)(gpu + 1);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetMinorNumber(void *d, unsigned *out) { return number32("minor", d, out); }
int nvmlDeviceGetName(void *d, char *out, unsigned size) { return text("name", d, out, size); }
int nvmlDeviceGetSerial(void *d, char *out, unsigned size) { return text("serial", d, out, size); }
int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { return text("uuid", d, out, size); }
int nvmlDeviceGetVbiosVersion(void *d, char *out, unsigned size) {
    return text("vbios", d, out, size);
}
int nvmlDeviceGetPciInfo_v3(void *d, char *out) { /* busIdLegacy[16], five numbers, busId[32] */
    memset(out, 0, 68);
    return text("bus", d, out + 36, 32);
}
static const char *beside_script(const char *ending) {
    static char path[4096];
    snprintf(path, sizeof path, "%s.%s", getenv("FAKE_NVML"), ending);
    return path;
}
static int set(const char *call, const char *key, void *d, unsigned value) {
    char own[LONGEST], line[LONGEST] = "";
    FILE *file;
    int code = refusal(call, index_of(d));
    if (code) return code;
    snprintf(own, sizeof own, "%s.%d %u\n", key, index_of(d), value);
    if ((file = fopen(beside_script("set"), "a")) == NULL) abort();
    fputs(own, file);
    fclose(file);
    if ((file = fopen(beside_script("hang"), "r")) != NULL) {
        if (fgets(line, sizeof line, file) == NULL) abort();
        fclose(file);
    }
    while (strcmp(line, own) == 0 && access(beside_script("hang"), F_OK) == 0) usleep(5000);
    return SUCCESS;
}
static int limit(void *d, unsigned *out) {
    char own[LONGEST], line[LONGEST];
    unsigned value;
    int code = number32("limit", d, out);
    FILE *file = fopen(beside_script("set"), "r");
    if (file == NULL || code) return code;
    snprintf(own, sizeof own, "limit.%d %%u", index_of(d));
    while (fgets(line, sizeof line, file))
        if (sscanf(line, own, &value) == 1) *out = value;
    fclose(file);
    return code;
}
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *out) { return limit(d, out); }
int nvmlDeviceGetPowerManagementLimit(void *d, unsigned *out) { return limit(d, out); }
int nvmlDeviceSetPowerManagementLimit(void *d, unsigned mw) {
    return set("set.limit", "limit", d, mw);
}
int nvmlDeviceSetGpuLockedClocks(void *d, unsigned lowest_mhz, unsigned highest_mhz) {
    return lowest_mhz > highest_mhz ? INVALID_ARGUMENT
                                    : set("set.clocks", "locked", d, highest_mhz);
}
int nvmlDeviceResetGpuLockedClocks(void *d) { return set("set.clocks", "locked", d, 0); }
int nvmlDeviceGetPowerManagementDefaultLimit(void *d, unsigned *out) {
    return number32("limit.default", d, out);
}
int nvmlDeviceGetPowerManagementLimitConstraints(void *d, unsigned *lowest, unsigned *highest) {
    int code = pair32("limit.max", d, highest, lowest);
    *lowest = (unsigned)setting("limit.min", index_of(d), 0);
    return code;
}
int nvmlDeviceGetEccMode(void *d, unsigned *now, unsigned *next) {
    return pair32("ecc", d, now, next);
}
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) {
    return pair32("mig", d, now, next);
}
int nvmlDeviceGetPersistenceMode(void *d, unsigned *out) { return number32("persistence", d, out); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *out) {
    return number32("pcie.generation", d, out);
}
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *out) {
    return number32("pcie.width", d, out);
}
int nvmlDeviceGetTemperatureThreshold(void *d, int which, unsigned *out) {
    return number32(which == 0 ? "temperature.shutdown" : "temperature.slowdown", d, out);
}
int nvmlDeviceGetMaxClockInfo(void *d, int type, unsigned *out) {
    return number32(type == 1 ? "clock.sm.max" : type == 2 ? "clock.memory.max" : "-", d, out);
}
int nvmlDeviceGetPowerUsage(void *d, unsigned *out) {
    const char *wave;
    int gpu = index_of(d), code = refusal("power", gpu);
    if (code) return code;
    if ((wave = lookup_gpu("power", gpu)) == NULL) return NOT_SUPPORTED;
    *out = (unsigned)lround(shown_power(wave, gpu, script_time()));
    return SUCCESS;
}
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out) {
    return sensor == 0 ? number32("temperature", d, out) : INVALID_ARGUMENT;
}
int nvmlDeviceGetFanSpeed(void *d, unsigned *out) { return number32("fan", d, out); }
int nvmlDeviceGetMarginTemperature(void *d, unsigned *out) { /* version, then the margin */
    return out[0] == 0x1000008 ? number32("margin", d, out + 1) : INVALID_ARGUMENT;
}
int nvmlDeviceGetClockInfo(void *d, int type, unsigned *out) {
    return number32(type == 1 ? "clock.sm" : type == 2 ? "clock.memory" : "-", d, out);
}
int nvmlDeviceGetUtilizationRates(void *d, unsigned *out) {
    return pair32("utilisation", d, out, out + 1);
}
#ifdef OLDER_THAN_535
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *out) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *out) {
#endif
    return number("reasons", d, out);
}
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *out) {
    return number("energy", d, out);
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *out) { /* total, free, used */
    out[0] = out[1] = 0;
    return number("used", d, out + 2);
}
int nvmlDeviceGetTotalEccErrors(void *d, int kind, int since, unsigned long long *out) {
    if (since != 0) return INVALID_ARGUMENT; /* since the driver loaded */
    return number(kind == 0 ? "ecc.corrected" : "ecc.uncorrected", d, out);
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, code;
    unsigned long long value;
} FieldValue;

int nvmlDeviceGetFieldValues(void *d, int count, FieldValue *values) {
    int code = refusal("fields", index_of(d));
    if (code) return code;
    for (int i = 0; i < count; i++) {
        char key[32], about[64];
        snprintf(key, sizeof key, "field.%u", values[i].field);
        values[i].value = 0;
        values[i].code = number(key, d, &values[i].value);
        snprintf(about, sizeof about, "%s.type", key);
        values[i].type = (int)setting(about, -1, UNSIGNED_LONG_LONG);
        snprintf(about, sizeof about, "%s.scope", key);
        if ((double)values[i].scope != setting(about, -1, 0)) values[i].code = INVALID_ARGUMENT;
    }
    return SUCCESS;
}

/* GPM: a sample is a moment, and a metric the mean of "gpm.ID" between two. */
typedef struct { double at; int gpu; } GpmSample;
typedef struct { unsigned id; int code; double value; const char *about[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmAsked;

int nvmlGpmQueryDeviceSupport(void *d, unsigned *version_and_support) {
    version_and_support[1] = lookup_gpu("gpm.2", index_of(d)) != NULL;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(GpmSample **sample) {
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleGet(void *d, GpmSample *sample) {
    int gpu = index_of(d), code = refusal("gpm", gpu);
    if (code) return code;
    sample->at = script_time();
    sample->gpu = gpu;
    return SUCCESS;
}

int nvmlGpmMetricsGet(GpmAsked *asked) {
    double from = asked->first->at, to = asked->second->at;
    for (unsigned i = 0; i < asked->count; i++) {
        char key[32];
        snprintf(key, sizeof key, "gpm.%u", asked->metrics[i].id);
        const char *wave = lookup_gpu(key, asked->second->gpu);
        asked->metrics[i].code = wave ? SUCCESS : NOT_SUPPORTED;
        if (wave) asked->metrics[i].value = mean_before(wave, to, to - from);
    }
    return SUCCESS;
}

typedef struct { unsigned long long time_us, value; } Sample;

int nvmlDeviceGetSamples(void *d, int kind, unsigned long long seen_us, int *type, unsigned *count,
                         Sample *samples) {
    int gpu = index_of(d), code = refusal("samples", gpu);
    double spacing = setting("samples.every", gpu, 0), epoch = setting("epoch", -1, 0);
    unsigned found = 0;
    const char *wave = lookup_gpu("power", gpu);
    if (code) return code;
    if (kind != 0 || spacing == 0 || wave == NULL) return NOT_SUPPORTED;
    *type = UNSIGNED_INT;
    if (samples == NULL) {
        *count = KEPT_SAMPLES;
        return SUCCESS;
    }
    double last = floor(script_time() / spacing + 1e-4);
    for (double i = fmax(1, last - KEPT_SAMPLES + 1); i <= last; i++) {
        double offset = setting("samples.offset", gpu, 0), t = i * spacing;
        unsigned long long time_us = (unsigned long long)llround((epoch + t + offset) * 1e6);
        if (time_us <= seen_us && !setting("samples.again", gpu, 0)) continue;
        if (found == *count) return INSUFFICIENT_SIZE;
        samples[found].time_us = time_us;
        /* Only 4 of the 8 bytes are the value. */
        samples[found++].value = 0xABCD000000000000ull |
            (unsigned)lround(mean_before(wave, t, spacing));
    }
    *count = found;
    return found ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetSupportedEventTypes(void *d, unsigned long long *out) {
    return number("events.types", d, out);
}
int nvmlEventSetCreate(void **out) {
    *out = (void *)0x5e7;
    return refusal("events.set", -1);
}
static unsigned long long registered[64];
int nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set) {
    int code = refusal("register", index_of(d));
    (void)set;
    registered[index_of(d)] = code ? 0 : types;
    return code;
}
int nvmlEventSetFree(void *set) {
    (void)set;
    return SUCCESS;
}

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;

int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms) {
    int code = refusal("wait", -1), number = 0;
    (void)set;
    if (code) return code;
    if (timeout_ms != 0) abort(); /* the sampler must not wait */
    for (int i = 0; i < line_count; i++) {
        int gpu;
        double at;
        if (strcmp(lines[i].key, "event") != 0 || number++ < events_told) continue;
        if (sscanf(lines[i].value, "%d %llu %llu %lf", &gpu, &out->type, &out->data, &at) != 4)
            abort();
        if (at > script_time()) break;
        events_told++;
        if (out->type && !(registered[gpu] & out->type)) continue;
        out->device = (void *)(long)(gpu + 1);
        return SUCCESS;
    }
    return TIMEOUT;
}
