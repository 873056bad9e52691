/* An interpreter for as much of PTX as our kernels are written in, so that their committed text runs without a GPU.
 * What each instruction does is taken from NVIDIA's "Parallel Thread Execution ISA"; one that is not known ends the
 * process, as does a register that was never written, and memory that a kernel was not given.
 *
 * Threads run one after the other: our kernels have none that wait for others. */
#include <ctype.h>
#include <math.h>

enum { PTX_REGISTERS = 64, PTX_PARAMETERS = 12, PTX_LABELS = 128, PTX_ENTRIES = 8 };
enum operand_kind { NONE, REGISTER, NUMBER, BLOCK_INDEX, BLOCK_SIZE, THREAD, PARAMETER };
enum width_kind { U8, U16, U32, U64, S8, S16, S32, S64, F16, F32, F64 };
enum instruction_kind {
    I_MOV, I_ADD, I_SUB, I_MUL, I_MAD, I_MAD_WIDE, I_DIV, I_REM, I_SHL, I_SHR, I_AND, I_OR, I_MIN, I_MAX, I_LD_PARAM, I_LD,
    I_ST, I_SETP, I_SELP, I_CVT, I_BRA, I_RET
};
enum comparison { C_EQ, C_NE, C_GE, C_NAN, C_NEU };

struct operand { enum operand_kind kind; int index; uint64_t bits; };
struct instruction {
    enum instruction_kind kind;
    enum width_kind type, from;
    enum comparison comparison;
    int guard; /* a register, or -1 */
    int target; /* of a jump */
    struct operand a, b, c, d;
    int line;
};
struct entry {
    char name[64];
    int parameters, registers, instructions;
    bool wide[PTX_PARAMETERS]; /* 8 bytes, not 4 */
    char parameter_names[PTX_PARAMETERS][32], register_names[PTX_REGISTERS][16];
    struct instruction *code;
};
struct module { struct module *next; bool live; int entries, pending; struct entry entry[PTX_ENTRIES]; };

/* ---- the text ---- */

static void ptx_fail(int line, const char *what, const char *text) { violation("PTX, line %d: %s: %s", line, what, text); }

static bool takes(const char **text, const char *word) {
    size_t length = strlen(word);
    if (strncmp(*text, word, length)) return false;
    *text += length;
    return true;
}

static enum width_kind type_of(const char **text, int line) {
    static const struct { const char *word; enum width_kind type; } all[] = {
        {".u8", U8}, {".u16", U16}, {".u32", U32}, {".u64", U64}, {".s8", S8}, {".s16", S16}, {".s32", S32}, {".s64", S64},
        {".b16", U16}, {".b32", U32}, {".b64", U64}, {".f16", F16}, {".f32", F32}, {".f64", F64}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (takes(text, all[i].word)) return all[i].type;
    ptx_fail(line, "no type", *text);
    return U8;
}

static int register_of(struct entry *entry, const char *name, int line) {
    for (int i = 0; i < entry->registers; i++)
        if (!strcmp(entry->register_names[i], name)) return i;
    if (entry->registers == PTX_REGISTERS) ptx_fail(line, "too many registers", name);
    snprintf(entry->register_names[entry->registers], sizeof entry->register_names[0], "%s", name);
    return entry->registers++;
}

static struct operand operand_of(struct entry *entry, const char *word, int line) {
    if (!strcmp(word, "%ctaid.x")) return (struct operand){.kind = BLOCK_INDEX};
    if (!strcmp(word, "%ntid.x")) return (struct operand){.kind = BLOCK_SIZE};
    if (!strcmp(word, "%tid.x")) return (struct operand){.kind = THREAD};
    if (*word == '%') return (struct operand){.kind = REGISTER, .index = register_of(entry, word, line)};
    if (*word == '[' && word[1] == '%') { /* an address in a register */
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 1, "]"), word + 1);
        return (struct operand){.kind = REGISTER, .index = register_of(entry, name, line)};
    }
    if (*word == '[') {
        for (int i = 0; i < entry->parameters; i++)
            if (!strncmp(entry->parameter_names[i], word + 1, strcspn(word + 1, "]")) &&
                !entry->parameter_names[i][strcspn(word + 1, "]")]) return (struct operand){.kind = PARAMETER, .index = i};
        ptx_fail(line, "no such parameter", word);
    }
    char *rest;
    if (!strncmp(word, "0d", 2) || !strncmp(word, "0f", 2)) {
        uint64_t bits = strtoull(word + 2, &rest, 16);
        if (*rest || rest - word != (word[1] == 'd' ? 18 : 10)) ptx_fail(line, "no float", word);
        return (struct operand){.kind = NUMBER, .bits = bits};
    }
    int64_t number = strtoll(word, &rest, 0);
    if (*rest || rest == word) ptx_fail(line, "no operand", word);
    return (struct operand){.kind = NUMBER, .bits = (uint64_t)number};
}

/* One instruction; `label` gets the name of what a jump goes to. */
static struct instruction instruction_of(struct entry *entry, const char *text, int line, char label[32]) {
    struct instruction new = {.guard = -1, .line = line, .target = -1};
    char words[5][40] = {{0}};
    const char *whole = text;
    if (*text == '@') {
        char name[16];
        size_t length = strcspn(++text, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, text);
        new.guard = register_of(entry, name, line);
        text += length + 1;
    }
    bool stores = false, compares = false;
    if (takes(&text, "ret;")) { new.kind = I_RET; return new; }
    if (takes(&text, "bra ")) {
        new.kind = I_BRA;
        snprintf(label, 32, "%.*s", (int)strcspn(text, ";"), text);
        return new;
    }
    if (takes(&text, "mov")) new.kind = I_MOV, new.type = type_of(&text, line);
    else if (takes(&text, "mad.lo")) new.kind = I_MAD, new.type = type_of(&text, line);
    else if (takes(&text, "mad.wide")) new.kind = I_MAD_WIDE, new.type = type_of(&text, line);
    else if (takes(&text, "mul.lo")) new.kind = I_MUL, new.type = type_of(&text, line);
    else if (takes(&text, "add")) new.kind = I_ADD, new.type = type_of(&text, line);
    /* Of floats only what says how it rounds: anything else might be contracted. */
    else if (takes(&text, "sub.rn")) new.kind = I_SUB, new.type = type_of(&text, line);
    else if (takes(&text, "div.rn")) new.kind = I_DIV, new.type = type_of(&text, line);
    else if (takes(&text, "sub.u")) text -= 2, new.kind = I_SUB, new.type = type_of(&text, line);
    else if (takes(&text, "div.u")) text -= 2, new.kind = I_DIV, new.type = type_of(&text, line);
    else if (takes(&text, "rem")) new.kind = I_REM, new.type = type_of(&text, line);
    else if (takes(&text, "shl")) new.kind = I_SHL, new.type = type_of(&text, line);
    else if (takes(&text, "shr.u")) text -= 2, new.kind = I_SHR, new.type = type_of(&text, line);
    else if (takes(&text, "and")) new.kind = I_AND, new.type = type_of(&text, line);
    else if (takes(&text, "or")) new.kind = I_OR, new.type = type_of(&text, line);
    else if (takes(&text, "min")) new.kind = I_MIN, new.type = type_of(&text, line);
    else if (takes(&text, "max")) new.kind = I_MAX, new.type = type_of(&text, line);
    else if (takes(&text, "selp")) new.kind = I_SELP, new.type = type_of(&text, line);
    else if (takes(&text, "ld.param")) new.kind = I_LD_PARAM, new.type = type_of(&text, line);
    else if (takes(&text, "ld.global")) new.kind = I_LD, new.type = type_of(&text, line);
    else if (takes(&text, "st.global")) new.kind = I_ST, new.type = type_of(&text, line), stores = true;
    else if (takes(&text, "setp")) {
        new.kind = I_SETP, compares = true;
        if (takes(&text, ".eq")) new.comparison = C_EQ;
        else if (takes(&text, ".neu")) new.comparison = C_NEU;
        else if (takes(&text, ".ne")) new.comparison = C_NE;
        else if (takes(&text, ".ge")) new.comparison = C_GE;
        else if (takes(&text, ".nan")) new.comparison = C_NAN;
        else ptx_fail(line, "no comparison", whole);
        new.type = type_of(&text, line);
    } else if (takes(&text, "cvt")) {
        /* Which of them round, and which must not say so, is part of the language. */
        bool nearest = takes(&text, ".rn"), zero = !nearest && takes(&text, ".rzi");
        new.kind = I_CVT, new.type = type_of(&text, line), new.from = type_of(&text, line);
        bool rounds = (new.type == F32 && (new.from == S64 || new.from == F64)) || (new.type == F64 && new.from == S64) ||
                      (new.type == F16 && new.from == F32);
        bool exact = (new.type == F64 && new.from == F32) || (new.type == F32 && new.from == F16);
        bool cuts = new.type == S64 && new.from == F64;
        if (rounds != nearest || cuts != zero || !(rounds || exact || cuts)) ptx_fail(line, "no such conversion", whole);
    } else ptx_fail(line, "an instruction that is not known", whole);
    int count = 0;
    while (*text && *text != ';') {
        while (*text == ' ' || *text == ',') text++;
        size_t length = strcspn(text, ",;");
        if (count == 5 || length >= sizeof words[0]) ptx_fail(line, "operands", whole);
        snprintf(words[count++], sizeof words[0], "%.*s", (int)length, text);
        text += length;
    }
    static const int counts[] = {[I_MOV] = 2, [I_ADD] = 3, [I_SUB] = 3, [I_MUL] = 3, [I_MAD] = 4, [I_MAD_WIDE] = 4,
                                 [I_DIV] = 3, [I_REM] = 3, [I_SHL] = 3, [I_SHR] = 3, [I_AND] = 3, [I_OR] = 3, [I_MIN] = 3,
                                 [I_MAX] = 3, [I_LD_PARAM] = 2, [I_LD] = 2, [I_ST] = 2, [I_SETP] = 3, [I_SELP] = 4,
                                 [I_CVT] = 2};
    if (*text != ';' || count != counts[new.kind]) ptx_fail(line, "operands", whole);
    struct operand *all[] = {&new.a, &new.b, &new.c, &new.d};
    for (int i = 0; i < count; i++) *all[i] = operand_of(entry, words[i], line);
    if (!stores && new.a.kind != REGISTER) ptx_fail(line, "no register to write", whole);
    if (compares != !strncmp(words[0], "%p", 2)) ptx_fail(line, "not the register for that", whole);
    return new;
}

/* The lines of one entry's body, from after its brace; returns what follows. */
static const char *body_of(struct entry *entry, const char *text, int *line) {
    static char labels[PTX_LABELS][32], jumps[4096][32];
    static int places[PTX_LABELS];
    int named = 0, room = 0;
    for (;;) {
        char now[160];
        size_t length = strcspn(text, "\n");
        if (!text[length] || length >= sizeof now) ptx_fail(*line, "a body that does not end", "");
        snprintf(now, sizeof now, "%.*s", (int)length, text);
        text += length + 1, ++*line;
        char *start = now + strspn(now, " ");
        if (*start == '}') break;
        if (!*start || !strncmp(start, ".reg ", 5)) continue;
        char *colon = strchr(start, ':');
        if (colon) {
            if (named == PTX_LABELS) ptx_fail(*line, "too many labels", start);
            *colon = 0;
            snprintf(labels[named], 32, "%s", start), places[named++] = entry->instructions;
            continue;
        }
        if (entry->instructions == room) entry->code = realloc(entry->code, (size_t)(room += 256) * sizeof *entry->code);
        if (entry->instructions == 4096) ptx_fail(*line, "too long", start);
        jumps[entry->instructions][0] = 0;
        struct instruction new = instruction_of(entry, start, *line, jumps[entry->instructions]);
        entry->code[entry->instructions++] = new;
    }
    for (int i = 0; i < entry->instructions; i++) {
        if (!jumps[i][0]) continue;
        for (int j = 0; j < named; j++)
            if (!strcmp(labels[j], jumps[i])) entry->code[i].target = places[j];
        if (entry->code[i].target < 0) ptx_fail(entry->code[i].line, "no such label", jumps[i]);
    }
    return text;
}

/* Reads a module's text; NULL if it is not in a version and for a target that the oldest driver takes. */
static struct module *module_of(const char *text) {
    struct module *module = calloc(1, sizeof *module);
    int line = 0;
    bool version = false, target = false;
    while (*text) {
        size_t length = strcspn(text, "\n");
        char now[160];
        snprintf(now, sizeof now, "%.*s", (int)length, text);
        text += length + (text[length] == '\n'), line++;
        version |= !strcmp(now, ".version 7.0"), target |= !strcmp(now, ".target sm_70");
        if (strncmp(now, ".visible .entry ", 16)) continue;
        if (module->entries == PTX_ENTRIES) ptx_fail(line, "too many entries", now);
        struct entry *entry = &module->entry[module->entries++];
        snprintf(entry->name, sizeof entry->name, "%.*s", (int)strcspn(now + 16, "("), now + 16);
        for (;;) {
            length = strcspn(text, "\n");
            snprintf(now, sizeof now, "%.*s", (int)length, text);
            text += length + 1, line++;
            char kind[8], name[32];
            if (sscanf(now, " .param .%7s %31[a-z]", kind, name) == 2) {
                if (entry->parameters == PTX_PARAMETERS) ptx_fail(line, "too many parameters", now);
                entry->wide[entry->parameters] = !strcmp(kind, "u64");
                snprintf(entry->parameter_names[entry->parameters++], 32, "%s", name);
            } else if (*now == '{') break;
            else if (*now != ')') ptx_fail(line, "no parameter", now);
        }
        text = body_of(entry, text, &line);
    }
    if (version && target && module->entries) return module;
    free(module);
    return NULL;
}

/* ---- arithmetic ---- */

static float as_f32(uint64_t bits) { uint32_t half = (uint32_t)bits; float x; memcpy(&x, &half, 4); return x; }
static double as_f64(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static uint64_t of_f32(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static uint64_t of_f64(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

static float from_half(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return half & 0x8000 ? -size : size;
}

/* To the nearest, ties to even: by trying the neighbours, not by bits, as others do. */
static uint16_t to_half(float x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double size = fabs((double)x);
    if (isnan(x)) return 0x7fff;
    if (size >= 65520) return sign | 0x7c00; /* halfway to what would be next */
    int low = 0, high = 0x7c00; /* the largest that is not above */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if ((double)from_half((uint16_t)middle) <= size) low = middle;
        else high = middle;
    }
    double below = size - (double)from_half((uint16_t)low);
    double next = low == 0x7bff ? 65536 : (double)from_half((uint16_t)(low + 1));
    double above = next - size;
    bool up = above < below || (above == below && (low & 1));
    return sign | (uint16_t)(low + up);
}

static int64_t cut(double x) { /* cvt.rzi.s64.f64 */
    if (isnan(x)) return INT64_MIN;
    return x >= 9223372036854775808.0 ? INT64_MAX : x <= -9223372036854775808.0 ? INT64_MIN : (int64_t)x;
}

static int bytes_of(enum width_kind type) {
    return type == U8 || type == S8 ? 1 : type == U16 || type == S16 || type == F16 ? 2
         : type == U64 || type == S64 || type == F64 ? 8 : 4;
}

/* ---- one thread ---- */

/* Where a kernel reads and writes: gives the host's address of device memory, or ends the process. */
typedef char *(*reach_t)(void *world, uint64_t address, int bytes, bool writes);

struct run_state { const struct entry *entry; const uint64_t *parameters; uint32_t block_size; reach_t reach; void *world; };

static void run_thread(const struct run_state *state, uint32_t block, uint32_t thread) {
    const struct entry *entry = state->entry;
    uint64_t registers[PTX_REGISTERS];
    bool written[PTX_REGISTERS] = {false};
    for (int at = 0, steps = 0; ; at++, steps++) {
        if (at >= entry->instructions || steps > 10000) ptx_fail(0, "a thread that does not end", entry->name);
        const struct instruction *now = &entry->code[at];
        if (now->guard >= 0) {
            if (!written[now->guard]) ptx_fail(now->line, "not written", entry->register_names[now->guard]);
            if (!registers[now->guard]) continue;
        }
        uint64_t value[4] = {0};
        const struct operand *operands[] = {&now->a, &now->b, &now->c, &now->d};
        for (int i = now->kind == I_ST ? 0 : 1; i < 4; i++) {
            const struct operand *operand = operands[i];
            switch (operand->kind) {
            case NONE: break;
            case REGISTER:
                if (!written[operand->index]) ptx_fail(now->line, "not written", entry->register_names[operand->index]);
                value[i] = registers[operand->index];
                break;
            case NUMBER: value[i] = operand->bits; break;
            case BLOCK_INDEX: value[i] = block; break;
            case BLOCK_SIZE: value[i] = state->block_size; break;
            case THREAD: value[i] = thread; break;
            case PARAMETER:
                if (entry->wide[operand->index] != (bytes_of(now->type) == 8))
                    ptx_fail(now->line, "a parameter of another width", entry->parameter_names[operand->index]);
                value[i] = state->parameters[operand->index];
                break;
            }
        }
        uint64_t b = value[1], c = value[2], d = value[3], result = 0;
        enum width_kind type = now->type;
        switch (now->kind) {
        case I_RET: return;
        case I_BRA: at = now->target - 1; continue;
        case I_MOV: result = b; break;
        case I_ADD: result = b + c; break;
        case I_SUB:
            result = type == F32 ? of_f32(as_f32(b) - as_f32(c)) : type == F64 ? of_f64(as_f64(b) - as_f64(c)) : b - c;
            break;
        case I_MUL: result = b * c; break;
        case I_MAD: result = b * c + d; break;
        case I_MAD_WIDE: result = (uint64_t)(uint32_t)b * (uint32_t)c + d; break;
        case I_DIV:
            if (type == U32 && !c) ptx_fail(now->line, "division by zero", entry->name);
            result = type == F32 ? of_f32(as_f32(b) / as_f32(c)) : type == F64 ? of_f64(as_f64(b) / as_f64(c)) : b / c;
            break;
        case I_REM:
            if (!c) ptx_fail(now->line, "division by zero", entry->name);
            result = b % c;
            break;
        case I_SHL: result = c > 31 ? 0 : b << c; break;
        case I_SHR: result = c > 31 ? 0 : (uint32_t)b >> c; break;
        case I_AND: result = b & c; break;
        case I_OR: result = b | c; break;
        case I_MIN: result = as_f64(b) < as_f64(c) ? b : c; break;
        case I_MAX: result = as_f64(b) > as_f64(c) ? b : c; break;
        case I_LD_PARAM: result = b; break;
        case I_LD: {
            const char *from = state->reach(state->world, b, bytes_of(type), false);
            memcpy(&result, from, (size_t)bytes_of(type));
            if (type == S8) result = (uint64_t)(int64_t)(int8_t)result;
            if (type == S16) result = (uint64_t)(int64_t)(int16_t)result;
            if (type == S32) result = (uint64_t)(int64_t)(int32_t)result;
            break;
        }
        case I_ST: {
            char *to = state->reach(state->world, value[0], bytes_of(type), true);
            if (to) memcpy(to, &b, (size_t)bytes_of(type));
            continue;
        }
        case I_SETP:
            if (type == F32 || type == F64) {
                double x = type == F32 ? (double)as_f32(b) : as_f64(b), y = type == F32 ? (double)as_f32(c) : as_f64(c);
                result = now->comparison == C_NAN ? isnan(x) || isnan(y) : now->comparison == C_NEU ? !(x == y)
                       : now->comparison == C_EQ ? x == y : now->comparison == C_GE ? x >= y : x < y || x > y;
            } else
                result = now->comparison == C_EQ ? b == c : now->comparison == C_NE ? b != c
                       : type == U32 ? (uint32_t)b >= (uint32_t)c : (int64_t)b >= (int64_t)c;
            break;
        case I_SELP: result = d ? b : c; break;
        case I_CVT:
            if (now->type == S64) result = (uint64_t)cut(as_f64(b));
            else if (now->type == F16) result = to_half(as_f32(b));
            else if (now->type == F32 && now->from == F16) result = of_f32(from_half((uint16_t)b));
            else if (now->type == F32) result = of_f32(now->from == S64 ? (float)(int64_t)b : (float)as_f64(b));
            else result = of_f64(now->from == S64 ? (double)(int64_t)b : (double)as_f32(b));
            break;
        }
        /* A 32-bit register keeps 32 bits; only loads widen, into what they are given. */
        if (now->kind != I_LD && now->kind != I_MAD_WIDE && now->kind != I_SETP && bytes_of(type) == 4)
            result = (uint32_t)result;
        registers[now->a.index] = result;
        written[now->a.index] = true;
    }
}
