/* A stand-in for libnvidia-ml.so.1, told what to say by the file that FAKE_NVML names: one "NAME VALUE" a line.
 * Names: init (return code), hang, count, capability (90 is 9.0), cuda (12080 is 12.8), used (bytes), user (pid),
 * lost (number of the GPU that does not answer, from 1), old (a driver without the third process list).
 * Return codes and layouts: nvml.h, version 13. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_FOUND = 13, LOST = 15, TOO_SMALL = 7 };
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

static int number(void *handle) { return (int)(long)handle; }
static int state(void *handle) { return said("lost", 0) == number(handle) ? LOST : SUCCESS; }

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
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)said("count", 2); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return SUCCESS; }
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
    memory->used = (unsigned long long)said("used", 0);
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
    unsigned have = said("user", 0) ? 1 : 0, room = *count;
    *count = have;
    if (room < have)
        return TOO_SMALL;
    if (have) {
        memset(list, 0, sizeof *list);
        list->pid = (unsigned)said("user", 0);
        list->used = (unsigned long long)said("used", 0);
    }
    return state(handle);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *list)
{
    return said("old", 0) ? NOT_FOUND : nvmlDeviceGetComputeRunningProcesses_v2(handle, count, list);
}
