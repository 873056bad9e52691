/* The stand-in's modules, launches and devices; libcuda.c includes it. */

static struct module *modules;

int cuModuleLoadData(void **result, const void *image) {
    ENTER_UNSAFE();
    struct module *module = module_of(image);
    if (!module) return leave(INVALID_PTX);
    module->live = true, module->next = modules, modules = module, modules_live++;
    *result = module;
    return leave(OK);
}

int cuModuleGetFunction(void **result, void *handle, const char *name) {
    ENTER_UNSAFE();
    struct module *module = handle;
    if (!module->live) violation("cuModuleGetFunction: the module was unloaded");
    for (int i = 0; i < module->entries; i++)
        if (!strcmp(module->entry[i].name, name)) {
            *result = &module->entry[i];
            return leave(OK);
        }
    return leave(NOT_FOUND);
}

int cuModuleUnload(void *handle) {
    ENTER_UNSAFE();
    struct module *module = handle;
    if (!module->live) violation("cuModuleUnload: the module was unloaded before");
    if (module->pending) violation("cuModuleUnload: a kernel of it did not run yet");
    module->live = false, modules_live--;
    return leave(OK);
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared, void *handle, void **parameters, void **extra) {
    ENTER();
    struct launch *launch = calloc(1, sizeof *launch);
    for (struct module *m = modules; m; m = m->next)
        for (int i = 0; i < m->entries; i++)
            if (&m->entry[i] == function) launch->module = m, launch->entry = function;
    if (!launch->module) violation("cuLaunchKernel: %p is no function", function);
    if (!launch->module->live) violation("cuLaunchKernel: the module was unloaded");
    if (!x || y != 1 || z != 1 || !block_x || block_x > 1024 || block_y != 1 || block_z != 1 || shared || extra)
        return leave(INVALID);
    launch->blocks = x, launch->block_size = block_x;
    for (int i = 0; i < launch->entry->parameters; i++) {
        /* As wide as the kernel says, and no byte more. */
        memcpy(&launch->parameters[i], parameters[i], launch->entry->wide[i] ? 8 : 4);
        if (!launch->entry->wide[i]) continue;
        struct memory *memory = device_memory(__func__, launch->parameters[i], 1);
        bool is_known = false;
        for (int j = 0; j < launch->count; j++) is_known |= launch->reached[j].memory == memory;
        if (is_known) continue;
        memory->pending++;
        launch->reached[launch->count++].memory = memory;
    }
    launch->module->pending++;
    kernels++;
    give(stream_of(__func__, handle),
         (struct op){.kind = KERNEL, .launch = launch, .microseconds = (unsigned)number_of("STANDIN_KERNEL_US", 0)});
    return leave(OK);
}

/* ---- devices ---- */

int cuInit(unsigned flags) {
    ENTER_ANYHOW();
    if (flags) return leave(INVALID);
    if (number_of("STANDIN_DEVICES", 1) <= 0) return leave(NO_DEVICE);
    owner = getpid();
    return leave(OK);
}

int cuDeviceGetCount(int *count) {
    ENTER_ANYHOW();
    *count = (int)number_of("STANDIN_DEVICES", 1);
    return leave(owner ? OK : NOT_INITIALIZED);
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER_ANYHOW();
    if (ordinal < 0 || ordinal >= number_of("STANDIN_DEVICES", 1)) return leave(BAD_DEVICE);
    *device = ordinal;
    return leave(OK);
}

int cuDeviceGetName(char *name, int size, int device) {
    ENTER_ANYHOW();
    if (device < 0 || device >= number_of("STANDIN_DEVICES", 1)) return leave(BAD_DEVICE);
    snprintf(name, (size_t)size, "stand-in %d", device);
    return leave(OK);
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER_ANYHOW();
    if (device < 0 || device >= number_of("STANDIN_DEVICES", 1)) return leave(BAD_DEVICE);
    memset(uuid, device, 16);
    return leave(OK);
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    ENTER_ANYHOW();
    /* CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED */
    *value = attribute == 115 && number_of("STANDIN_POOLS", 1);
    return leave(OK);
}

int cuDriverGetVersion(int *version) {
    ENTER_ANYHOW();
    *version = 12000;
    return leave(OK);
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER_ANYHOW();
    static char primary[16];
    contexts++;
    *context = &primary[device & 15];
    return leave(OK);
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    ENTER_ANYHOW();
    if (--contexts < 0) violation("cuDevicePrimaryCtxRelease: it was not retained");
    return leave(OK);
}

int cuCtxSetCurrent(void *context) {
    ENTER_ANYHOW();
    current = context;
    if (context_threads_count < 16) prctl(PR_GET_NAME, context_threads[context_threads_count++]);
    return leave(OK);
}

int cuGetErrorName(int code, const char **name) {
    *name = NULL;
    if (code > UNKNOWN) return INVALID; /* as the driver does with a number that it does not know */
    *name = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == 218 ? "CUDA_ERROR_INVALID_PTX" : code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OF_THE_STAND_IN";
    return OK;
}
