/* A stand-in for the CUDA driver, for tests on machines without a GPU: what shardfeed calls of it, with host memory
 * behind device addresses, streams that really run beside the caller, and no mercy for calls that are wrong.
 *
 * Device addresses cannot be read or written by the host: their pages are PROT_NONE, the bytes are mapped elsewhere.
 * Work on a stream is done in order by a thread of its own. Work on the legacy default stream begins after all that was
 * queued before on streams that are not CU_STREAM_NON_BLOCKING. The reverse, which holds on a GPU, too, does not hold
 * here, so that code that relies on it is seen.
 *
 * A violation ends the process with a message. It is one if
 *   a copy leaves live memory, or memory is freed, unregistered or unmapped while a copy needs it;
 *   host memory changes between the call and the end of an asynchronous copy from it;
 *   device memory is written while something reads it, or read while something writes it;
 *   an event or stream is used that does not exist, or an event is waited for that was never recorded;
 *   a kernel leaves the allocations that its parameters point to, or is unloaded before it ran;
 *   a call comes from a process that was forked from the one that called cuInit;
 *   a thread makes a call that is unsafe during stream captures while another thread captures in global mode, or itself
 *   does in any mode but the relaxed one, unless its own mode (cuThreadExchangeStreamCaptureMode) allows that;
 *   in any mode: the context is waited for during a capture; the legacy default stream is used during the capture of a
 *   stream that is not CU_STREAM_NON_BLOCKING; a stream that is captured, or an event that was recorded there, is waited
 *   for or asked about by the host; captured work waits for an event from outside, or the reverse.
 * Work that is queued on a stream that is captured is forgotten: graphs are never launched here. cuMemFree waits for all
 * streams, as NVIDIA's driver does; cuMemFreeAsync does not.
 *
 * Kernels run by their own PTX (ptx.h), first without writing, to see where they would.
 *
 * Environment: STANDIN_REPORT=FILE (JSON, written when the process ends), STANDIN_DEVICES=N (1), STANDIN_COPY_US=N
 * (each copy from the host takes so long), STANDIN_KERNEL_US=N (each kernel does), STANDIN_REFUSE_PIN=CODE, STANDIN_POOLS=0 (no cuMemAllocAsync), STANDIN_FAIL=FUNCTION:N:CODE (its N-th call, from 1;
 * codes from 700 to 799 stay for all later calls, and nothing that was queued runs any more), STANDIN_TRACE=1 (the report has each piece of work).
 *
 * Copies to the device are made at the pace of this machine's memory: nothing can be measured with it. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, NO_CONTEXT = 201,
       BAD_HANDLE = 400, NOT_FOUND = 500, INVALID_PTX = 218, NOT_READY = 600, STICKY_FROM = 700, UNKNOWN = 999 };
enum { COPY_IN, COPY_ON, COPY_BACK, RECORD, WAIT, WORK, KERNEL, FREE };
static const char *const WORDS[] = {"copy_in", "copy_on", "copy_back", "record", "wait", "work", "kernel", "free"};
enum { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };

struct event { struct event *next; int id; bool live, is_captured; uint64_t recorded, completed; };
/* `live` until it is freed by a call, `gone` when that was carried out. */
struct memory { struct memory *next; uintptr_t base; size_t bytes; char *shadow; bool live, gone; int pending; };
struct pinned { struct pinned *next; uintptr_t base; size_t bytes; int pending; };
struct launch;
struct op {
    struct op *next;
    struct launch *launch;
    int kind;
    struct memory *from, *to;
    struct pinned *source;
    size_t from_at, to_at, bytes;
    char *host, *staged;
    uint64_t sum, number, ticket;
    struct event *event;
    unsigned microseconds;
};
struct stream { struct stream *next; int id; bool live, is_default, is_running, is_blocking, is_captured; int capture_mode; pthread_t capturer; struct op *first, **last; pthread_t thread; uint64_t given, done; };
struct access { struct access *next; struct memory *memory; size_t at, bytes; bool writes; };
struct trace { int stream, kind, event; bool ends; uintptr_t address; size_t bytes; };

static pthread_mutex_t world = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t copied_in; /* copies from the host that are done */
static struct event *events;
static struct memory *memories;
static struct pinned *pins;
static struct stream *streams;
static struct access *accesses;
static struct stream *legacy;
static __thread struct stream *per_thread;
static __thread void *current;
static __thread int capture_mode = CAPTURE_GLOBAL;
static uint64_t tickets;
static pid_t owner;
static int sticky, next_id, contexts, pageable, copies, kernels, modules_live;
static size_t device_bytes, device_bytes_peak, pinned_bytes_peak;
static char context_threads[16][16];
static int context_threads_count;
static struct trace *traces;
static size_t traces_count;
#define TRACES_MAX 1000000

static long number_of(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

/* ---- the report ---- */

static void report(const char *violation) {
    const char *name = getenv("STANDIN_REPORT");
    FILE *file = name ? fopen(name, "w") : NULL;
    if (!file) return;
    int live_events = 0, live_streams = 0, live_memories = 0, live_pins = 0;
    for (struct event *e = events; e; e = e->next) live_events += e->live;
    for (struct stream *s = streams; s; s = s->next) live_streams += s->live && !s->is_default;
    for (struct memory *m = memories; m; m = m->next) live_memories += m->live;
    for (struct pinned *p = pins; p; p = p->next) live_pins++;
    fprintf(file, "{\"violation\": \"%s\", \"live\": {\"events\": %d, \"streams\": %d, \"memory\": %d, \"pinned\": %d, "
            "\"contexts\": %d, \"modules\": %d}, \"copies\": %d, \"kernels\": %d, \"pageable\": %d, \"device_bytes_peak\": %zu, \"pinned_bytes_peak\": %zu, "
            "\"context_threads\": [", violation ? violation : "", live_events, live_streams, live_memories, live_pins,
            contexts, modules_live, copies, kernels, pageable, device_bytes_peak, pinned_bytes_peak);
    for (int i = 0; i < context_threads_count; i++) fprintf(file, "%s\"%s\"", i ? ", " : "", context_threads[i]);
    fprintf(file, "], \"trace\": [");
    for (size_t i = 0; i < traces_count; i++)
        fprintf(file, "%s[%d, \"%s\", \"%s\", %d, %zu, %zu]", i ? ",\n" : "", traces[i].stream, WORDS[traces[i].kind],
                traces[i].ends ? "end" : "begin", traces[i].event, (size_t)traces[i].address, traces[i].bytes);
    fprintf(file, "]}\n");
    fclose(file);
}

__attribute__((destructor)) static void at_exit(void) {
    if (owner == getpid()) report(NULL);
}

static void violation(const char *format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    fprintf(stderr, "stand-in libcuda: violation: %s\n", text);
    report(text);
    abort();
}

static void note(struct stream *stream, struct op *op, bool ends) {
    if (!number_of("STANDIN_TRACE", 0) || traces_count == TRACES_MAX) return;
    if (!traces) traces = malloc(TRACES_MAX * sizeof *traces);
    struct memory *memory = op->to ? op->to : op->from;
    traces[traces_count++] = (struct trace){
        .stream = stream->id, .kind = op->kind, .event = op->event ? op->event->id : 0, .ends = ends,
        .address = memory ? memory->base + (op->to ? op->to_at : op->from_at) : 0, .bytes = op->bytes};
}

#include "ptx.h"

/* ---- each call ---- */

static int refused(const char *function) {
    static struct { char name[48]; int calls; } seen[64];
    if (owner && owner != getpid()) violation("%s in a forked process", function);
    if (sticky) return sticky;
    const char *plan = getenv("STANDIN_FAIL");
    size_t len = strlen(function);
    if (!plan || strncmp(plan, function, len) || plan[len] != ':') return OK;
    for (int i = 0; i < 64; i++) {
        if (!seen[i].name[0]) snprintf(seen[i].name, sizeof seen[i].name, "%s", function);
        if (strcmp(seen[i].name, function)) continue;
        char *rest;
        long nth = strtol(plan + len + 1, &rest, 10), code = strtol(rest + 1, NULL, 10);
        if (++seen[i].calls != nth) return OK;
        if (code >= STICKY_FROM && code < 800) {
            sticky = (int)code;
            pthread_cond_broadcast(&changed);
            for (struct stream *s = streams; s; s = s->next)
                while (s->is_running) pthread_cond_wait(&changed, &world);
        }
        return (int)code;
    }
    return OK;
}

static int leave(int code) {
    pthread_mutex_unlock(&world);
    return code;
}

#define ENTER_ANYHOW() \
    pthread_mutex_lock(&world); \
    { int code_ = refused(__func__); if (code_) return leave(code_); }
#define ENTER() \
    ENTER_ANYHOW(); \
    if (!owner) return leave(NOT_INITIALIZED); \
    if (!current) return leave(NO_CONTEXT)

/* Calls that NVIDIA's documentation calls unsafe during captures, or does not call safe. */
static void check_captures(const char *function) {
    for (struct stream *s = streams; s; s = s->next) {
        if (!s->is_captured) continue;
        bool is_own = pthread_equal(s->capturer, pthread_self());
        if (is_own ? s->capture_mode != CAPTURE_RELAXED && capture_mode != CAPTURE_RELAXED
                   : s->capture_mode == CAPTURE_GLOBAL && capture_mode == CAPTURE_GLOBAL)
            violation("%s during the capture of stream %d, by a thread in a mode that forbids it", function, s->id);
    }
}

#define ENTER_UNSAFE() \
    ENTER(); \
    check_captures(__func__)

/* ---- memory ---- */

static uint64_t sum_of(const char *bytes, size_t count) {
    uint64_t sum = 1469598103934665603u;
    size_t words = count / 8;
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, bytes + 8 * i, 8);
        sum = (sum ^ word) * 1099511628211u;
    }
    for (size_t i = 8 * words; i < count; i++) sum = (sum ^ (unsigned char)bytes[i]) * 1099511628211u;
    return sum;
}

static struct memory *device_memory(const char *function, uintptr_t address, size_t bytes) {
    for (struct memory *m = memories; m; m = m->next)
        if (address >= m->base && address < m->base + (m->bytes ? m->bytes : 1)) {
            if (!m->live) violation("%s: device memory %zx was freed", function, (size_t)address);
            if (address + bytes > m->base + m->bytes)
                violation("%s: %zu bytes at %zx leave their allocation", function, bytes, (size_t)address);
            return m;
        }
    violation("%s: %zx is no device memory", function, (size_t)address);
    return NULL;
}

static struct pinned *pinned_memory(uintptr_t address, size_t bytes) {
    for (struct pinned *p = pins; p; p = p->next)
        if (address >= p->base && address + bytes <= p->base + p->bytes) return p;
    return NULL;
}

static bool is_mapped(uintptr_t address, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = address & ~(page - 1);
    size_t pages = (address + bytes - from + page - 1) / page;
    unsigned char *there = malloc(pages);
    bool mapped = mincore((void *)from, pages * page, there) == 0;
    free(there);
    return mapped;
}

static int allocate(uintptr_t *result, size_t bytes) {
    if (!bytes) return INVALID;
    int fd = memfd_create("standin-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) return NO_MEMORY;
    struct memory *m = calloc(1, sizeof *m);
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    m->shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED || m->shadow == MAP_FAILED) return NO_MEMORY;
    memset(m->shadow, 0xa5, bytes);
    m->base = (uintptr_t)base, m->bytes = bytes, m->live = true, m->next = memories, memories = m;
    device_bytes += bytes;
    if (device_bytes > device_bytes_peak) device_bytes_peak = device_bytes;
    *result = m->base;
    return OK;
}

int cuMemAlloc_v2(uintptr_t *result, size_t bytes) {
    ENTER_UNSAFE();
    return leave(allocate(result, bytes));
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER_UNSAFE();
    *total = (size_t)80 << 30, *free_bytes = *total - device_bytes;
    return leave(OK);
}

static void let_go(struct memory *m) {
    if (m->pending) violation("device memory %zx is freed while something needs it", (size_t)m->base);
    munmap(m->shadow, m->bytes);
    /* The address is not used again. */
    if (mmap((void *)m->base, m->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) ==
        MAP_FAILED) violation("device memory is freed: %s", strerror(errno));
    m->gone = true, m->shadow = NULL, device_bytes -= m->bytes;
}

/* The beginning of an allocation, which nothing may be queued for from here on. */
static struct memory *freed_memory(const char *function, uintptr_t address) {
    struct memory *m = device_memory(function, address, 0);
    if (m->base != address) violation("%s: %zx is not the beginning of an allocation", function, (size_t)address);
    m->live = false;
    return m;
}

static void wait_for_streams(void) {
    for (struct stream *s = streams; s; s = s->next) {
        uint64_t given = s->given;
        while (s->done < given) pthread_cond_wait(&changed, &world);
    }
}

int cuMemFree_v2(uintptr_t address) {
    ENTER_UNSAFE();
    struct memory *m = freed_memory(__func__, address);
    wait_for_streams();
    let_go(m);
    return leave(OK);
}

int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER_UNSAFE();
    long refuse = number_of("STANDIN_REFUSE_PIN", 0);
    if (refuse) return leave((int)refuse);
    uintptr_t base = (uintptr_t)address;
    if (!is_mapped(base, bytes)) violation("cuMemHostRegister: %zx is not mapped", (size_t)base);
    size_t all = bytes;
    for (struct pinned *p = pins; p; p = p->next) {
        if (base < p->base + p->bytes && p->base < base + bytes)
            violation("cuMemHostRegister: %zx is registered already", (size_t)base);
        all += p->bytes;
    }
    if (all > pinned_bytes_peak) pinned_bytes_peak = all;
    struct pinned *p = calloc(1, sizeof *p);
    p->base = base, p->bytes = bytes, p->next = pins, pins = p;
    return leave(OK);
}

int cuMemHostUnregister(void *address) {
    ENTER_UNSAFE();
    for (struct pinned **p = &pins; *p; p = &(*p)->next)
        if ((*p)->base == (uintptr_t)address) {
            struct pinned *found = *p;
            if (found->pending) violation("cuMemHostUnregister: a copy from %p is under way", address);
            if (!is_mapped(found->base, found->bytes)) violation("cuMemHostUnregister: %p is not mapped any more", address);
            *p = found->next;
            free(found);
            return leave(OK);
        }
    violation("cuMemHostUnregister: %p is not registered", address);
    return leave(INVALID);
}

/* ---- streams ---- */

static void begin_access(const char *who, struct memory *memory, size_t at, size_t bytes, bool writes) {
    if (memory->gone) violation("%s: its device memory was freed", who);
    for (struct access *a = accesses; a; a = a->next)
        if (a->memory == memory && a->at < at + bytes && at < a->at + a->bytes && (a->writes || writes))
            violation("%s %s %zx while something %s it", who, writes ? "writes" : "reads", (size_t)(memory->base + at),
                      a->writes ? "writes" : "reads");
    struct access *a = malloc(sizeof *a);
    *a = (struct access){accesses, memory, at, bytes, writes};
    accesses = a;
}

static void end_access(struct memory *memory, size_t at) {
    for (struct access **a = &accesses; *a; a = &(*a)->next)
        if ((*a)->memory == memory && (*a)->at == at) {
            struct access *found = *a;
            *a = found->next;
            free(found);
            return;
        }
}

static atomic_bool is_hurried;

/* In pieces, as a test may have no more time for it. */
static void pause_for(unsigned microseconds) {
    while (microseconds && !is_hurried) {
        unsigned piece = microseconds < 10000 ? microseconds : 10000;
        struct timespec time = {0, (long)piece * 1000};
        while (nanosleep(&time, &time) && errno == EINTR) {}
        microseconds -= piece;
    }
}

/* ---- kernels ---- */

/* What a kernel reads and writes of one allocation. */
struct reached { struct memory *memory; size_t read_from, read_to, write_from, write_to; };
struct launch {
    struct module *module;
    struct entry *entry;
    uint64_t parameters[PTX_PARAMETERS];
    uint32_t blocks, block_size;
    bool is_dry;
    int count;
    struct reached reached[4];
};

static char *reach(void *world, uint64_t address, int bytes, bool writes) {
    struct launch *launch = world;
    for (int i = 0; i < launch->count; i++) {
        struct reached *there = &launch->reached[i];
        struct memory *memory = there->memory;
        if (address < memory->base || address + (uint64_t)bytes > memory->base + memory->bytes) continue;
        if (address % (uint64_t)bytes) violation("kernel %s: %d bytes at %zx", launch->entry->name, bytes, (size_t)address);
        size_t at = address - memory->base, end = at + (size_t)bytes;
        size_t *from = writes ? &there->write_from : &there->read_from, *to = writes ? &there->write_to : &there->read_to;
        if (*to == 0 || at < *from) *from = at;
        if (end > *to) *to = end;
        return launch->is_dry && writes ? NULL : memory->shadow + at;
    }
    violation("kernel %s %s %zx, which is none of its parameters' memory", launch->entry->name, writes ? "writes" : "reads",
              (size_t)address);
    return NULL;
}

static void run_launch(struct launch *launch) {
    struct run_state state = {launch->entry, launch->parameters, launch->block_size, reach, launch};
    for (uint32_t block = 0; block < launch->blocks; block++)
        for (uint32_t thread = 0; thread < launch->block_size; thread++) run_thread(&state, block, thread);
}

/* Called with the world locked, as `run`. */
static void run_kernel(struct stream *stream, struct op *op) {
    struct launch *launch = op->launch;
    launch->is_dry = true;
    run_launch(launch);
    launch->is_dry = false;
    note(stream, op, false);
    for (int i = 0; i < launch->count; i++) {
        struct reached *there = &launch->reached[i];
        if (there->read_to) begin_access(WORDS[KERNEL], there->memory, there->read_from, there->read_to - there->read_from, false);
        if (there->write_to) begin_access(WORDS[KERNEL], there->memory, there->write_from, there->write_to - there->write_from, true);
    }
    pthread_mutex_unlock(&world);
    pause_for(op->microseconds);
    run_launch(launch);
    pthread_mutex_lock(&world);
    for (int i = 0; i < launch->count; i++) {
        struct reached *there = &launch->reached[i];
        if (there->read_to) end_access(there->memory, there->read_from);
        if (there->write_to) end_access(there->memory, there->write_from);
        there->memory->pending--;
    }
    launch->module->pending--;
    note(stream, op, true);
}

/* Waits until so many copies from the host are done. Called with the world locked. */
static void await_copies(uint64_t copies) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    while (!sticky && copied_in < copies)
        if (pthread_cond_timedwait(&changed, &world, &end) == ETIMEDOUT)
            violation("%lu of %lu copies are done after 20 s", (unsigned long)copied_in, (unsigned long)copies);
}

/* Called with the world locked; unlocks it while bytes move. */
static void run(struct stream *stream, struct op *op) {
    const char *word = WORDS[op->kind];
    for (struct stream *s = stream == legacy ? streams : NULL; s; s = s->next)
        while (!sticky && s->is_blocking && s->first && s->first->ticket < op->ticket) pthread_cond_wait(&changed, &world);
    if (op->kind == FREE) {
        let_go(op->to);
        note(stream, op, true);
        return;
    }
    if (op->kind == RECORD) {
        if (op->event->completed < op->number) op->event->completed = op->number;
        note(stream, op, true);
        return;
    }
    if (op->kind == WAIT) {
        while (!sticky && op->event->completed < op->number) pthread_cond_wait(&changed, &world);
        note(stream, op, true);
        return;
    }
    if (op->kind == KERNEL) {
        run_kernel(stream, op);
        return;
    }
    note(stream, op, false);
    if (op->from) begin_access(word, op->from, op->from_at, op->bytes, false);
    if (op->to) begin_access(word, op->to, op->to_at, op->bytes, true);
    pthread_mutex_unlock(&world);
    char *from = op->from ? op->from->shadow + op->from_at : op->staged ? op->staged : op->host;
    char *to = op->to ? op->to->shadow + op->to_at : op->kind == COPY_BACK ? op->host : NULL;
    pause_for(op->microseconds);
    uint64_t sum = op->kind == WORK || op->source ? sum_of(from, op->bytes) : 0;
    if (op->source && sum != op->sum) violation("host memory changed before a copy from it was complete");
    if (to) memcpy(to, from, op->bytes);
    if (op->source && sum_of(from, op->bytes) != sum) violation("host memory changed during a copy from it");
    if (op->kind == WORK) {
        pause_for(op->microseconds);
        if (sum_of(from, op->bytes) != sum) violation("device memory changed while it was read");
    }
    pthread_mutex_lock(&world);
    copied_in += op->kind == COPY_IN;
    if (op->kind == WORK) await_copies(op->number);
    if (op->from) end_access(op->from, op->from_at), op->from->pending--;
    if (op->to) end_access(op->to, op->to_at), op->to->pending--;
    if (op->source) op->source->pending--;
    note(stream, op, true);
}

static void *work(void *argument) {
    struct stream *stream = argument;
    prctl(PR_SET_NAME, "standin-stream");
    pthread_mutex_lock(&world);
    for (;;) {
        while (!stream->first) {
            if (!stream->live) {
                pthread_mutex_unlock(&world);
                return NULL;
            }
            pthread_cond_wait(&changed, &world);
        }
        struct op *op = stream->first;
        stream->is_running = true;
        if (!sticky) run(stream, op);
        stream->is_running = false;
        stream->first = op->next;
        if (!stream->first) stream->last = &stream->first;
        stream->done++;
        free(op->staged);
        free(op->launch);
        free(op);
        pthread_cond_broadcast(&changed);
    }
}

static struct stream *new_stream(void) {
    struct stream *stream = calloc(1, sizeof *stream);
    stream->id = ++next_id, stream->live = true, stream->last = &stream->first;
    stream->next = streams, streams = stream;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&stream->thread, &attributes, work, stream)) violation("no thread for a stream");
    return stream;
}

static struct stream *stream_of(const char *function, void *handle) {
    uintptr_t number = (uintptr_t)handle;
    if (number <= 1) {
        for (struct stream *s = streams; s; s = s->next)
            if (s->is_captured && s->is_blocking)
                violation("%s: the legacy stream is used during the capture of stream %d", function, s->id);
        if (!legacy) legacy = new_stream(), legacy->is_default = true;
        return legacy;
    }
    if (number == 2) {
        if (!per_thread) per_thread = new_stream(), per_thread->is_default = per_thread->is_blocking = true;
        return per_thread;
    }
    for (struct stream *s = streams; s; s = s->next)
        if (s == handle) {
            if (!s->live) violation("%s: the stream was destroyed", function);
            return s;
        }
    violation("%s: %p is no stream", function, handle);
    return NULL;
}

static struct event *event_of(const char *function, void *handle) {
    for (struct event *e = events; e; e = e->next)
        if (e == handle) {
            if (!e->live) violation("%s: the event was destroyed", function);
            return e;
        }
    violation("%s: %p is no event", function, handle);
    return NULL;
}

static void give(struct stream *stream, struct op op) {
    if (stream->is_captured) { /* a graph is never launched here */
        free(op.staged);
        free(op.launch);
        return;
    }
    struct op *new = malloc(sizeof *new);
    *new = op;
    new->ticket = ++tickets;
    *stream->last = new;
    stream->last = &new->next;
    stream->given++;
    if (op.from) op.from->pending++;
    if (op.to && op.kind != FREE) op.to->pending++;
    if (op.source) op.source->pending++;
    pthread_cond_broadcast(&changed);
}

int cuStreamCreate(void **result, unsigned flags) {
    ENTER_UNSAFE();
    if (flags > 1) return leave(INVALID);
    struct stream *stream = new_stream();
    stream->is_blocking = !flags;
    *result = stream;
    return leave(OK);
}

/* A stream that the host waits for or asks about. */
static struct stream *known_stream(const char *function, void *handle) {
    struct stream *stream = stream_of(function, handle);
    if (stream->is_captured) violation("%s: stream %d is captured", function, stream->id);
    return stream;
}

static struct event *known_event(const char *function, void *handle) {
    struct event *event = event_of(function, handle);
    if (event->is_captured) violation("%s: the event was recorded on a stream that was captured", function);
    return event;
}

int cuMemAllocAsync(uintptr_t *result, size_t bytes, void *handle) {
    ENTER();
    if (!number_of("STANDIN_POOLS", 1)) return leave(801);
    known_stream(__func__, handle);
    return leave(allocate(result, bytes));
}

int cuMemFreeAsync(uintptr_t address, void *handle) {
    ENTER();
    if (!number_of("STANDIN_POOLS", 1)) return leave(801);
    struct stream *stream = known_stream(__func__, handle);
    give(stream, (struct op){.kind = FREE, .to = freed_memory(__func__, address)});
    return leave(OK);
}

/* ---- captures ---- */

int cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER();
    if (*mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED) return leave(INVALID);
    int before = capture_mode;
    capture_mode = *mode, *mode = before;
    return leave(OK);
}

int cuStreamIsCapturing(void *handle, int *status) {
    ENTER();
    for (struct stream *s = streams; (uintptr_t)handle <= 1 && s; s = s->next)
        if (s->is_captured && s->is_blocking) return leave(906);
    *status = stream_of(__func__, handle)->is_captured;
    return leave(OK);
}

int cuStreamBeginCapture_v2(void *handle, int mode) {
    ENTER();
    struct stream *stream = known_stream(__func__, handle);
    if (stream == legacy) violation("cuStreamBeginCapture: the legacy stream cannot be captured");
    stream->is_captured = true, stream->capture_mode = mode, stream->capturer = pthread_self();
    return leave(OK);
}

int cuStreamEndCapture(void *handle, void **graph) {
    ENTER();
    struct stream *stream = stream_of(__func__, handle);
    if (!stream->is_captured) violation("cuStreamEndCapture: stream %d is not captured", stream->id);
    if (stream->capture_mode != CAPTURE_RELAXED && !pthread_equal(stream->capturer, pthread_self()))
        violation("cuStreamEndCapture: another thread began this capture");
    stream->is_captured = false;
    *graph = NULL;
    return leave(OK);
}

int cuStreamDestroy_v2(void *handle) {
    ENTER_UNSAFE();
    known_stream(__func__, handle)->live = false; /* its thread ends after what is queued */
    pthread_cond_broadcast(&changed);
    return leave(OK);
}

int cuStreamSynchronize(void *handle) {
    ENTER_UNSAFE();
    struct stream *stream = known_stream(__func__, handle);
    uint64_t given = stream->given;
    while (stream->done < given) pthread_cond_wait(&changed, &world);
    return leave(sticky);
}

int cuStreamWaitEvent(void *handle, void *event, unsigned flags) {
    ENTER();
    if (flags) return leave(INVALID);
    struct event *e = event_of(__func__, event);
    if (!e->recorded) violation("cuStreamWaitEvent: the event was never recorded");
    struct stream *stream = stream_of(__func__, handle);
    if (stream->is_captured != e->is_captured)
        violation("cuStreamWaitEvent: of stream %d and the event one is captured", stream->id);
    give(stream, (struct op){.kind = WAIT, .event = e, .number = e->recorded});
    return leave(OK);
}

int cuCtxSynchronize(void) {
    ENTER_UNSAFE();
    for (struct stream *s = streams; s; s = s->next)
        if (s->is_captured) violation("cuCtxSynchronize: stream %d is captured", s->id);
    wait_for_streams();
    return leave(sticky);
}

int cuEventCreate(void **result, unsigned flags) {
    ENTER_UNSAFE();
    if (!(flags & 2)) violation("cuEventCreate: the event measures time, which costs and is not used");
    struct event *e = calloc(1, sizeof *e);
    e->id = ++next_id, e->live = true, e->next = events, events = e;
    *result = e;
    return leave(OK);
}

int cuEventDestroy_v2(void *event) {
    ENTER_UNSAFE();
    event_of(__func__, event)->live = false;
    return leave(OK);
}

int cuEventRecord(void *event, void *handle) {
    ENTER();
    struct event *e = event_of(__func__, event);
    struct stream *stream = stream_of(__func__, handle);
    e->recorded++, e->is_captured = stream->is_captured;
    give(stream, (struct op){.kind = RECORD, .event = e, .number = e->recorded});
    return leave(OK);
}

int cuEventQuery(void *event) {
    ENTER_UNSAFE();
    struct event *e = known_event(__func__, event);
    return leave(e->completed < e->recorded ? NOT_READY : OK);
}

int cuEventSynchronize(void *event) {
    ENTER_UNSAFE();
    struct event *e = known_event(__func__, event);
    uint64_t number = e->recorded;
    while (e->completed < number) pthread_cond_wait(&changed, &world);
    return leave(sticky);
}

int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *handle) {
    ENTER();
    struct op op = {.kind = COPY_IN, .to = device_memory(__func__, to, bytes), .bytes = bytes, .host = (char *)from};
    if (!is_mapped((uintptr_t)from, bytes)) violation("cuMemcpyHtoDAsync: %p is not mapped", from);
    op.to_at = to - op.to->base, op.microseconds = (unsigned)number_of("STANDIN_COPY_US", 0);
    op.source = pinned_memory((uintptr_t)from, bytes);
    copies++;
    if (op.source) {
        op.sum = sum_of(from, bytes);
    } else { /* as the driver does: the caller's bytes are free again when the call returns */
        pageable++;
        op.staged = malloc(bytes);
        memcpy(op.staged, from, bytes);
    }
    give(stream_of(__func__, handle), op);
    return leave(OK);
}

int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *handle) {
    ENTER();
    struct op op = {.kind = COPY_ON, .bytes = bytes};
    op.to = device_memory(__func__, to, bytes), op.to_at = to - op.to->base;
    op.from = device_memory(__func__, from, bytes), op.from_at = from - op.from->base;
    give(stream_of(__func__, handle), op);
    return leave(OK);
}

int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *handle) {
    ENTER();
    struct op op = {.kind = COPY_BACK, .bytes = bytes, .host = to};
    op.from = device_memory(__func__, from, bytes), op.from_at = from - op.from->base;
    give(stream_of(__func__, handle), op);
    return leave(OK);
}

#include "calls.h"

/* ---- for tests ---- */

/* A kernel that reads memory, twice, for so long: it sees whether that changes meanwhile. */
int standin_work(void *handle, uintptr_t from, size_t bytes, unsigned microseconds) {
    ENTER();
    struct op op = {.kind = WORK, .bytes = bytes, .microseconds = microseconds / 2};
    op.from = device_memory(__func__, from, bytes), op.from_at = from - op.from->base;
    give(stream_of(__func__, handle), op);
    return leave(OK);
}

/* The same, which lasts until so many copies from the host are done, in all. */
int standin_work_until(void *handle, uintptr_t from, size_t bytes, unsigned copies) {
    ENTER();
    struct op op = {.kind = WORK, .bytes = bytes, .number = copies};
    op.from = device_memory(__func__, from, bytes), op.from_at = from - op.from->base;
    give(stream_of(__func__, handle), op);
    return leave(OK);
}

/* From here on nothing takes its time any more. */
int standin_hurry(void) {
    is_hurried = true;
    return OK;
}
