/* The part of ROCm's libamd_smi.so that the sampler uses, answering from the file named by
 * FAKE_AMD_SMI.
 *
 * The file holds lines "key value", read anew at every call, so that a test can change what a GPU
 * says while it is sampled. "temperature_edge" is every GPU's, "temperature_edge.1" only GPU 1's;
 * "metrics.error" and its kin are the code with which a call fails. A field of the table of metrics
 * without a key has all its bits set, as ROCm marks what a GPU does not have.
 *
 * "power" is constant from "epoch" (seconds since 1970) on. "power_field" says which field has it
 * (average or current); the accumulator has its integral above "energy_base" in units of 2^-16 J,
 * unless "energy" says what it has. With
 * "cycles_hz", the firmware's cycles are counted, and residencies are the shares "ppt_share",
 * "prochot_share", "socket_share", "vr_share", "hbm_share" of them.
 *
 * Variants: LONGER appends a field to the table, SWAPPED exchanges energy and timestamp.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 2 };

static int find(const char *key, char *value, size_t size) {
    char line[256];
    int found = 0;
    FILE *file = fopen(getenv("FAKE_AMD_SMI"), "r");
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

static int find_of(const char *key, int gpu, char *value, size_t size) {
    char own[128];
    snprintf(own, sizeof own, "%s.%d", key, gpu);
    return find(own, value, size) || find(key, value, size);
}

static uint64_t whole(const char *key, int gpu, uint64_t otherwise) {
    char value[128];
    return find_of(key, gpu, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

static double real(const char *key, int gpu, double otherwise) {
    char value[128];
    return find_of(key, gpu, value, sizeof value) ? strtod(value, NULL) : otherwise;
}

static int gpu_of(void *handle) { return (int)(intptr_t)handle - 1; }

static int failure(const char *call, int gpu) {
    char key[128];
    snprintf(key, sizeof key, "%s.error", call);
    return (int)whole(key, gpu, SUCCESS);
}

static double unix_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Power at a time since the epoch, and energy since then. */
static void wave(int gpu, double at_s, double *watts, double *joules) {
    char value[128];
    if (!find_of("power", gpu, value, sizeof value)) {
        *watts = *joules = -1;
    } else {
        *watts = strtod(value, NULL);
        *joules = *watts * at_s;
    }
}

struct partition { /* of which nothing is used here */
    uint32_t busy[8];
    uint16_t jpeg[40], vcn[4];
    uint64_t accumulated[6][8];
};

struct metrics {
    uint16_t structure_size;
    uint8_t format_revision, content_revision;
    uint16_t temperature_edge, temperature_hotspot, temperature_mem, regulators[3];
    uint16_t average_gfx_activity, other_activity[2], average_socket_power;
#ifdef SWAPPED
    uint64_t system_clock_counter, energy_accumulator;
#else
    uint64_t energy_accumulator, system_clock_counter;
#endif
    uint16_t average_clocks[7];
    uint16_t current_gfxclk, current_socclk, current_uclk, current_video[4];
    uint32_t throttle_status;
    uint16_t fan, pcie_width, pcie_speed;
    uint32_t activity_sums[2];
    uint16_t hbm[4];
    uint64_t firmware_timestamp;
    uint16_t voltages[3];
    uint64_t indep_throttle_status;
    uint16_t current_socket_power, vcn_activity[4];
    uint32_t lock_status;
    uint16_t xgmi_width, xgmi_speed;
    uint64_t pcie[5];
    uint64_t xgmi_read[8], xgmi_write[8];
    uint16_t clocks[8 + 4 + 4 + 4], jpeg_activity[32];
    uint32_t pcie_naks[2];
    uint64_t accumulation_counter, prochot, ppt, socket, regulator, hbm_limit;
    uint16_t partitions;
    struct partition partition[8];
    uint32_t pcie_recovery;
    uint64_t bandwidth;
    uint16_t link_status[8];
#ifdef LONGER
    uint64_t newer_field;
#endif
};

static void links(uint64_t *counters, const char *key, int gpu) { /* "10,20": the first two links */
    char value[128];
    if (!find_of(key, gpu, value, sizeof value)) return;
    char *rest = value;
    for (int link = 0; link < 8 && *rest != '\0'; link++) {
        counters[link] = strtoull(rest, &rest, 0);
        rest += *rest == ',';
    }
}

static uint64_t share_of(uint64_t cycles, const char *key, int gpu) {
    double share = real(key, gpu, -1);
    return share < 0 ? UINT64_MAX : (uint64_t)((double)cycles * share);
}

int amdsmi_get_gpu_metrics_info(void *handle, struct metrics *out) {
    int gpu = gpu_of(handle), code = failure("metrics", gpu);
    double now_s = unix_s(), at_s = now_s - real("epoch", gpu, now_s), watts, joules;
    char value[16] = "average";
    if (code) return code;
    memset(out, 0xFF, sizeof *out);
    wave(gpu, at_s, &watts, &joules);
    find_of("power_field", gpu, value, sizeof value);
    if (watts >= 0) {
        uint16_t *field =
            value[0] == 'a' ? &out->average_socket_power : &out->current_socket_power;
        *field = (uint16_t)(watts + 0.5);
        out->energy_accumulator = whole("energy_base", gpu, 0) + (uint64_t)(joules * 65536);
    }
    out->energy_accumulator = whole("energy", gpu, out->energy_accumulator);
    out->system_clock_counter = (uint64_t)(now_s * 1e9);
    out->temperature_edge = (uint16_t)whole("temperature_edge", gpu, UINT16_MAX);
    out->temperature_hotspot = (uint16_t)whole("temperature_hotspot", gpu, UINT16_MAX);
    out->temperature_mem = (uint16_t)whole("temperature_mem", gpu, UINT16_MAX);
    out->average_gfx_activity = (uint16_t)whole("activity", gpu, UINT16_MAX);
    out->current_gfxclk = (uint16_t)whole("gfxclk", gpu, UINT16_MAX);
    out->current_uclk = (uint16_t)whole("uclk", gpu, UINT16_MAX);
    out->indep_throttle_status = whole("throttle_status", gpu, UINT64_MAX);
    links(out->xgmi_read, "xgmi_read", gpu);
    links(out->xgmi_write, "xgmi_write", gpu);
    double hz = real("cycles_hz", gpu, 0);
    if (hz > 0) {
        uint64_t cycles = (uint64_t)(at_s * hz);
        out->accumulation_counter = cycles;
        out->ppt = share_of(cycles, "ppt_share", gpu);
        out->prochot = share_of(cycles, "prochot_share", gpu);
        out->socket = share_of(cycles, "socket_share", gpu);
        out->regulator = share_of(cycles, "vr_share", gpu);
        out->hbm_limit = share_of(cycles, "hbm_share", gpu);
    }
    return SUCCESS;
}

int amdsmi_get_energy_count(void *handle, uint64_t *units, float *resolution, uint64_t *time_ns) {
    struct metrics metrics;
    int code = amdsmi_get_gpu_metrics_info(handle, &metrics);
    *units = metrics.energy_accumulator;
    *time_ns = metrics.system_clock_counter;
    *resolution = 15.3F;
    return code;
}

int amdsmi_init(uint64_t flags) {
    (void)flags;
    return failure("init", 0);
}
int amdsmi_shut_down(void) { return SUCCESS; }

int amdsmi_get_socket_handles(uint32_t *count, void **sockets) { /* each device is a socket */
    *count = (uint32_t)whole("count", 0, 0);
    for (uint32_t i = 0; sockets != NULL && i < *count; i++) sockets[i] = (void *)(intptr_t)(i + 1);
    return SUCCESS;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    *count = 1;
    if (handles != NULL) handles[0] = socket;
    return failure("handles", gpu_of(socket));
}

int amdsmi_get_gpu_device_uuid(void *handle, unsigned *length, char *uuid) {
    snprintf(uuid, *length, "%02xff740c-0000-1000-80fd-2a1f0a5b3900", gpu_of(handle));
    return SUCCESS;
}
int amdsmi_get_gpu_device_bdf(void *handle, uint64_t *bdf) {
    /* function 3 bits, device 5, bus 8, domain 48 */
    *bdf = whole("function", gpu_of(handle), 0) | whole("bus", gpu_of(handle), 0) << 8;
    return SUCCESS;
}

struct asic {
    char market_name[256];
    uint32_t vendor;
    char vendor_name[256];
    uint32_t subvendor;
    uint64_t device;
    uint32_t revision;
    char serial[256];
    uint32_t oam, compute_units;
    uint64_t graphics_version;
    uint32_t subsystem, reserved[21];
};

int amdsmi_get_gpu_asic_info(void *handle, struct asic *out) {
    memset(out, 0, sizeof *out);
    find_of("name", gpu_of(handle), out->market_name, sizeof out->market_name);
    find_of("serial", gpu_of(handle), out->serial, sizeof out->serial);
    return failure("asic", gpu_of(handle));
}
int amdsmi_get_gpu_driver_info(void *handle, char (*out)[256]) { /* version, date, name */
    memset(out, 0, 3 * 256);
    find_of("driver", gpu_of(handle), out[0], 256);
    return SUCCESS;
}
int amdsmi_get_power_cap_info(void *handle, uint32_t sensor, uint64_t *out) {
    (void)sensor;
    memset(out, 0, 8 * sizeof *out); /* power_cap comes first */
    out[0] = whole("cap", gpu_of(handle), 0);
    return failure("cap", gpu_of(handle));
}
int amdsmi_get_temp_metric(void *handle, int sensor, int metric, int64_t *out) {
    if (sensor != 1 || metric != 5) return INVALID; /* hotspot, critical */
    *out = (int64_t)whole("critical", gpu_of(handle), 0);
    return *out ? SUCCESS : NOT_SUPPORTED;
}
int amdsmi_get_gpu_memory_usage(void *handle, int kind, uint64_t *out) {
    if (kind != 0) return INVALID; /* VRAM */
    *out = whole("used", gpu_of(handle), 0);
    return failure("used", gpu_of(handle));
}
int amdsmi_get_gpu_total_ecc_count(void *handle, uint64_t *out) {
    memset(out, 0, 8 * sizeof *out); /* correctable, uncorrectable, deferred */
    out[0] = whole("ecc_corrected", gpu_of(handle), 0);
    out[1] = whole("ecc_uncorrected", gpu_of(handle), 0);
    return failure("ecc", gpu_of(handle));
}
