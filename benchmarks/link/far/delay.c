/* A delay line between this network namespace and the namespace NAME: each packet waits half of the round trip, so TCP pays
 * for it as on a real link: handshakes, slow start, windows. A rate, if given, is shared by all connections of a direction.
 *
 *   delay NAME NET RTT_MS MTU [MBYTES_PER_SECOND] [LOSS_PER_MILLION]
 *
 * Here is NET.1, there NET.2, as 10.91.7. Runs until it is killed; the devices go with it. Build: gcc -O2 -pthread. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 65536

static long half_ns, mtu, loss;
static double bytes_per_ns; /* 0: no limit */

struct line { int in, out; char *bytes; int *len; long *due; unsigned long head, tail; long free_at; unsigned seed; };

static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }

static void take(struct line *l, long slot) {
    for (int k = 0; k < 64; k++) {
        unsigned long i = l->head % SLOTS;
        int n = read(l->in, l->bytes + i * slot, slot);
        if (n <= 0) return;
        if (loss && rand_r(&l->seed) % 1000000 < loss) continue;
        if (l->head - l->tail >= SLOTS - 1) continue; /* full: dropped, as a router does */
        long at = now();
        if (bytes_per_ns > 0) { if (l->free_at < at) l->free_at = at; l->free_at += n / bytes_per_ns; at = l->free_at; }
        l->len[i] = n; l->due[i] = at + half_ns; l->head++;
    }
}

static void *carry(void *of) {
    struct line *l = of; long slot = mtu + 64;
    l->bytes = malloc(SLOTS * slot); l->len = malloc(SLOTS * sizeof(int)); l->due = malloc(SLOTS * sizeof(long));
    for (;;) {
        long at = now();
        while (l->tail < l->head && l->due[l->tail % SLOTS] <= at) {
            unsigned long i = l->tail++ % SLOTS;
            if (write(l->out, l->bytes + i * slot, l->len[i]) < 0) { /* the peer went away: lost */ }
        }
        long wait = 50000000;
        if (l->tail < l->head) { wait = l->due[l->tail % SLOTS] - now(); if (wait < 0) wait = 0; }
        struct timespec t = {wait / 1000000000L, wait % 1000000000L};
        struct pollfd p = {l->in, POLLIN, 0};
        if (ppoll(&p, 1, &t, 0) > 0) take(l, slot);
    }
    return 0;
}

static int tun(const char *name, const char *address) {
    int f = open("/dev/net/tun", O_RDWR | O_NONBLOCK); struct ifreq r; char run[300];
    memset(&r, 0, sizeof r); r.ifr_flags = IFF_TUN | IFF_NO_PI; strncpy(r.ifr_name, name, IFNAMSIZ - 1);
    if (f < 0 || ioctl(f, TUNSETIFF, &r)) { perror("tun"); exit(1); }
    snprintf(run, sizeof run, "ip addr add %s/24 dev %s && ip link set %s mtu %ld up && ip link set %s txqueuelen 5000 && ip link set lo up", address, name, name, mtu, name);
    if (system(run)) exit(1);
    return f;
}

int main(int n, char **v) {
    if (n < 5) { fputs("delay NAME NET RTT_MS MTU [MBYTES_PER_SECOND] [LOSS_PER_MILLION]\n", stderr); return 2; }
    half_ns = atof(v[3]) * 5e5; mtu = atol(v[4]); if (n > 5) bytes_per_ns = atof(v[5]) / 1e3; if (n > 6) loss = atol(v[6]);
    char path[200], device[IFNAMSIZ], address[64];
    snprintf(path, sizeof path, "/var/run/netns/%s", v[1]);
    snprintf(device, sizeof device, "ct%d", getpid()); snprintf(address, sizeof address, "%s.1", v[2]);
    int a = tun(device, address), home = open("/proc/self/ns/net", O_RDONLY), there = open(path, O_RDONLY);
    if (there < 0 || setns(there, CLONE_NEWNET)) { perror(path); return 1; }
    snprintf(address, sizeof address, "%s.2", v[2]);
    int b = tun(device, address); setns(home, CLONE_NEWNET);
    struct line up = {.in = a, .out = b, .seed = 1}, down = {.in = b, .out = a, .seed = 2};
    pthread_t t; pthread_create(&t, 0, carry, &up);
    puts("ready"); fflush(stdout); carry(&down);
}
