/* A library for LD_PRELOAD that hides instruction sets from a process: the CPUID instruction answers as on a
   processor without AVX-512 and AMX (HIDE_CPUID=x86-64-v3), or without AVX and what came after it, too
   (HIDE_CPUID=x86-64-v2). The kernel makes CPUID fault (arch_prctl(2), ARCH_SET_CPUID; Linux on processors with
   "cpuid_fault"), and a handler of SIGSEGV answers. /proc/cpuinfo is the file that HIDE_CPUINFO names.

   What a program decides before libraries are loaded stays: libc's own memcpy (see on_isa.py for that). Processes
   that it starts inherit the environment, so compilers with -march=native see the same. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

/* What is hidden: the bits of one register of one leaf (Intel SDM, volume 2A, CPUID). */
enum { EAX, EBX, ECX, EDX };
struct hidden { uint32_t leaf, sub; int reg; uint32_t bits; };

static const struct hidden after_avx2[] = {
    {7, 0, EBX, BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)}, /* avx512f to vl */
    {7, 0, ECX, BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14)},            /* vbmi, vbmi2, vnni, bitalg, vpopcntdq */
    {7, 0, EDX, BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25)},     /* vp2intersect, fp16, amx */
    {7, 1, EAX, BIT(5) | BIT(21)},                                                      /* avx512_bf16, amx_fp16 */
    {7, 1, EDX, BIT(8) | BIT(19)},                                                        /* amx_complex, avx10 */
    {0xd, 0, EAX, BIT(5) | BIT(6) | BIT(7) | BIT(17) | BIT(18)},                        /* their registers' state */
};
static const struct hidden after_sse42[] = {
    {1, 0, ECX, BIT(12) | BIT(22) | BIT(28) | BIT(29)},                                /* fma, movbe, avx, f16c */
    {7, 0, EBX, BIT(3) | BIT(5) | BIT(8)},                                                   /* bmi1, avx2, bmi2 */
    {7, 0, ECX, BIT(9) | BIT(10)},                                                         /* vaes, vpclmulqdq */
    {7, 1, EAX, BIT(0) | BIT(1) | BIT(2) | BIT(4) | BIT(23)},            /* sha512, sm3, sm4, avx_vnni, avx_ifma */
    {7, 1, EDX, BIT(4) | BIT(5) | BIT(10)},                        /* avx_vnni_int8, avx_ne_convert, avx_vnni_int16 */
    {0xd, 0, EAX, BIT(2)},                                                              /* the upper half of ymm */
    {0x80000001, 0, ECX, BIT(5) | BIT(11) | BIT(16)},                                          /* lzcnt, xop, fma4 */
};

static int deep;
static struct sigaction users; /* what the program wants of other faults */

static void hide(const struct hidden *rows, size_t count, uint32_t leaf, uint32_t sub, uint32_t *regs) {
    for (size_t i = 0; i < count; i++)
        if (rows[i].leaf == leaf && (rows[i].sub == sub || leaf == 1 || leaf == 0x80000001))
            regs[rows[i].reg] &= ~rows[i].bits;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *saved = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)saved[REG_RIP];
    if (info->si_code == SI_KERNEL && at[0] == 0x0f && at[1] == 0xa2) {
        uint32_t leaf = saved[REG_RAX], sub = saved[REG_RCX], regs[4];
        int kept = errno;
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1L);
        __asm__ volatile("cpuid" : "=a"(regs[EAX]), "=b"(regs[EBX]), "=c"(regs[ECX]), "=d"(regs[EDX])
                         : "a"(leaf), "c"(sub));
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L);
        errno = kept;
        hide(after_avx2, sizeof after_avx2 / sizeof *after_avx2, leaf, sub, regs);
        if (deep)
            hide(after_sse42, sizeof after_sse42 / sizeof *after_sse42, leaf, sub, regs);
        saved[REG_RAX] = regs[EAX], saved[REG_RBX] = regs[EBX];
        saved[REG_RCX] = regs[ECX], saved[REG_RDX] = regs[EDX];
        saved[REG_RIP] += 2;
    } else if (users.sa_flags & SA_SIGINFO) {
        users.sa_sigaction(number, info, context);
    } else if (users.sa_handler != SIG_DFL && users.sa_handler != SIG_IGN) {
        users.sa_handler(number);
    } else { /* the fault comes again, and ends the process */
        int (*real)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
        real(SIGSEGV, &users, NULL);
    }
}

/* The program's handlers of SIGSEGV come second, and no thread may block the signal. */
int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    int (*real)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    if (number != SIGSEGV)
        return real(number, new, old);
    struct sigaction before = users;
    if (new)
        users = *new;
    if (old)
        *old = before;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &new, &old) ? SIG_ERR : old.sa_handler;
}

static int masked(const char *name, int how, const sigset_t *set, sigset_t *old) {
    int (*real)(int, const sigset_t *, sigset_t *) = dlsym(RTLD_NEXT, name);
    sigset_t open;
    if (set && how != SIG_UNBLOCK) {
        open = *set;
        sigdelset(&open, SIGSEGV);
        set = &open;
    }
    return real(how, set, old);
}

int sigprocmask(int how, const sigset_t *set, sigset_t *old) { return masked("sigprocmask", how, set, old); }
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) { return masked("pthread_sigmask", how, set, old); }

/* /proc/cpuinfo, for those who read it there. */
static const char *shown(const char *path) {
    const char *file = getenv("HIDE_CPUINFO");
    return file && path && strcmp(path, "/proc/cpuinfo") == 0 ? file : path;
}

#define OPENS(name)                                                              \
    int name(const char *path, int flags, ...) {                                 \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);           \
        va_list rest;                                                            \
        va_start(rest, flags);                                                   \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;  \
        va_end(rest);                                                            \
        return real(shown(path), flags, mode);                                   \
    }
OPENS(open)
OPENS(open64)

#define STREAMS(name)                                                            \
    FILE *name(const char *path, const char *mode) {                             \
        FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, #name);     \
        return real(shown(path), mode);                                          \
    }
STREAMS(fopen)
STREAMS(fopen64)

__attribute__((constructor)) static void begin(void) {
    const char *level = getenv("HIDE_CPUID");
    if (!level)
        return;
    deep = strcmp(level, "x86-64-v2") == 0;
    int (*real)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    struct sigaction own = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    real(SIGSEGV, &own, &users);
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L) != 0) {
        fprintf(stderr, "hidden_cpuid: this machine cannot hide CPUID: %s\n", strerror(errno));
        _exit(70);
    }
}
