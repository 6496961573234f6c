/* A stand-in for libnvidia-ml.so.1, told what to say by the file that FAKE_NVML names: one "NAME VALUE" a line.
 * Names: init (return code), hang, count, capability (90 is 9.0), cuda (12080 is 12.8), used (bytes), user (pid),
 * lost (number of the GPU that does not answer, from 1), old (a driver without the third process list), gone (number of
 * the GPU that is listed no more), wedge (every question about a GPU blocks), reset (number of the GPU that must be
 * reset), half (number of one that must be and still tells its memory), bare (nothing beyond memory and processes),
 * deaf (no events), mute (who waits for events is sent away), util, reasons, ecc, corrected, rows, replays, remap_pending, remap_failed and
 * recovery (what the calls of that kind say).
 * "NAME.2 VALUE" is said of the second GPU alone. xid: the number of an error; it is told to who waits for events each
 * time that event (a count) grows, of the GPU xid_gpu.
 * Return codes and layouts: nvml.h, version 13. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMEOUT = 10, NOT_FOUND = 13, LOST = 15, RESET_REQUIRED = 16 };
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;

static long long said(const char *wanted, long long otherwise)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[64];
    long long value, found = otherwise;
    while (file && fscanf(file, "%63s %lld", name, &value) == 2)
        if (!strcmp(name, wanted))
            found = value;
    if (file)
        fclose(file);
    return found;
}

/* Make the file FAKE_NVML.told: the reader has the process that uses a GPU. */
static void note_that_it_was_told(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.told", getenv("FAKE_NVML"));
    FILE *file = fopen(path, "w");
    if (file)
        fclose(file);
}

static int number(void *handle) { return (int)(long)handle; }
static long long said_of(void *handle, const char *wanted, long long otherwise)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", wanted, number(handle));
    return said(name, said(wanted, otherwise));
}
static int state(void *handle)
{
    while (said("wedge", 0))
        usleep(10000);
    if (said("reset", 0) == number(handle))
        return RESET_REQUIRED;
    return said("lost", 0) == number(handle) ? LOST : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    while (said("hang", 0))
        sleep(1);
    return (int)said("init", SUCCESS);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "a fault of the stand-in"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.95.05"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = (int)said("cuda", 13000); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)said("count", 2) - (said("gone", 0) ? 1 : 0);
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    long long gone = said("gone", 0);
    *handle = (void *)(long)(index + 1 + (gone && index + 1 >= gone));
    return SUCCESS;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size)
{
    snprintf(text, size, "NVIDIA H200");
    return state(handle);
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size)
{
    snprintf(text, size, "GPU-%c%c%c%c", 96 + number(handle), 96 + number(handle), 96 + number(handle), 96 + number(handle));
    return state(handle);
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory)
{
    memory->total = 150754820096ULL;
    memory->used = (unsigned long long)said_of(handle, "used", 0);
    memory->free = memory->total - memory->used;
    return state(handle);
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    *major = (int)said("capability", 90) / 10;
    *minor = (int)said("capability", 90) % 10;
    return state(handle);
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, process_t *list)
{
    unsigned have = said_of(handle, "user", 0) ? 1 : 0, room = *count;
    *count = have;
    if (room < have)
        return TOO_SMALL;
    if (have) {
        memset(list, 0, sizeof *list);
        list->pid = (unsigned)said_of(handle, "user", 0);
        note_that_it_was_told();
        list->used = (unsigned long long)said_of(handle, "used", 0);
    }
    return state(handle);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *list)
{
    return said("old", 0) ? NOT_FOUND : nvmlDeviceGetComputeRunningProcesses_v2(handle, count, list);
}

/* What the watch asks beyond that. Layouts: nvml.h, version 13. */
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilisation_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } pci_t;
typedef struct { void *device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_t;
static const unsigned long long XID_EVENT = 8;

static int measured(void *handle)
{
    if (said("half", 0) == number(handle))
        return RESET_REQUIRED;
    return said("bare", 0) ? NOT_SUPPORTED : state(handle);
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2_t *memory)
{
    if (said("old", 0))
        return NOT_FOUND;
    memory->total = 150754820096ULL;
    memory->reserved = 600000000ULL;
    memory->used = (unsigned long long)said_of(handle, "used", 0);
    memory->free = memory->total - memory->reserved - memory->used;
    return state(handle);
}
int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->address, sizeof pci->address, "00000000:%02X:00.0", 0x3a + number(handle));
    return state(handle);
}
int nvmlDeviceGetUtilizationRates(void *handle, utilisation_t *rates)
{
    rates->gpu = (unsigned)said_of(handle, "util", 0);
    rates->memory = 0;
    return measured(handle);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons)
{
    *reasons = (unsigned long long)said_of(handle, "reasons", 0);
    return measured(handle);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons)
{
    return said("old", 0) ? NOT_FOUND : nvmlDeviceGetCurrentClocksThrottleReasons(handle, reasons);
}
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *count)
{
    *count = counter == 0 ? (unsigned long long)said_of(handle, kind == 1 ? "ecc" : "corrected", 0) : 0;
    return measured(handle);
}
int nvmlDeviceGetPcieReplayCounter(void *handle, unsigned *count)
{
    *count = (unsigned)said_of(handle, "replays", 0);
    return measured(handle);
}
int nvmlDeviceGetTemperatureThreshold(void *handle, int kind, unsigned *celsius)
{
    *celsius = kind == 1 ? 92 : 95;
    return measured(handle);
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    *corrected = 0;
    *uncorrected = (unsigned)said_of(handle, "rows", 0);
    *pending = (unsigned)said_of(handle, "remap_pending", 0);
    *failed = (unsigned)said_of(handle, "remap_failed", 0);
    return measured(handle);
}
int nvmlDeviceGetFieldValues(void *handle, int count, field_t *fields)
{
    for (int i = 0; i < count; i++) {
        fields[i].code = fields[i].field == 230 && !said("old", 0) ? SUCCESS : NOT_SUPPORTED;
        fields[i].value.u = (unsigned)said_of(handle, "recovery", 0);
    }
    return measured(handle);
}
static long long told = 0;
int nvmlEventSetCreate(void **events)
{
    static int set;
    *events = &set;
    told = said("event", 0);
    return said("deaf", 0) ? NOT_SUPPORTED : SUCCESS;
}
int nvmlEventSetFree(void *events) { (void)events; return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *kinds) { *kinds = XID_EVENT | 2; return state(handle); }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long kinds, void *events)
{
    (void)kinds, (void)events;
    return state(handle);
}
int nvmlEventSetWait_v2(void *events, event_t *event, unsigned timeout_ms)
{
    (void)events;
    for (unsigned waited_ms = 0; waited_ms <= timeout_ms; waited_ms += 10) {
        if (said("lost", 0) || said("mute", 0))
            return LOST;
        if (said("event", 0) > told) {
            told = said("event", 0);
            memset(event, 0, sizeof *event);
            event->device = (void *)(long)said("xid_gpu", 1);
            event->kind = XID_EVENT;
            event->data = (unsigned long long)said("xid", 79);
            return SUCCESS;
        }
        usleep(10000);
    }
    return TIMEOUT;
}
