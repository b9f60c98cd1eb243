/* Measures the time from a report to the resulting order: a libzmq peer whose every report, each of another caller, exceeds that
 * caller's limit of one per minute in the domain "probe".
 * Arguments: accounting and control endpoints, and the duration in seconds. A report is due every 2 ms; its time counts from then, so a
 * late order delays the following ones, too. Prints the count, and p50, p99, p99.9 and the maximum in milliseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define EVERY 0.002
#define MOST 100000

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void report(void *socket, const char *identifier) {
    struct timespec wall;
    char received[32];
    clock_gettime(CLOCK_REALTIME, &wall);
    snprintf(received, sizeof received, "%ld%03ld", (long)wall.tv_sec, wall.tv_nsec / 1000000);
    zmq_send(socket, "probe", 6, ZMQ_SNDMORE);
    zmq_send(socket, "ACCEPTED", 8, ZMQ_SNDMORE);
    zmq_send(socket, identifier, strlen(identifier), ZMQ_SNDMORE);
    zmq_send(socket, received, strlen(received), ZMQ_SNDMORE);
    zmq_send(socket, "", 0, ZMQ_SNDMORE);
    zmq_send(socket, "", 0, 0);
}

/* Waits for the order for this caller. */
static int hear(void *socket, const char *identifier) {
    char frames[4][256];
    while (1) {
        int more = 1, place = 0;
        while (more) {
            int length = zmq_recv(socket, frames[place], sizeof frames[0] - 1, 0);
            if (length < 0) return -1;
            frames[place][length < 255 ? length : 255] = 0;
            size_t size = sizeof more;
            zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
            if (place < 3) place++;
        }
        if (strcmp(frames[2], identifier) == 0) return 0;
    }
}

int main(int count, char **words) {
    if (count != 4) return 2;
    void *context = zmq_ctx_new();
    void *accounting = zmq_socket(context, ZMQ_PUB), *control = zmq_socket(context, ZMQ_SUB);
    int patience_ms = 5000, linger = 0;
    zmq_setsockopt(control, ZMQ_SUBSCRIBE, "probe", 6);
    zmq_setsockopt(control, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
    zmq_setsockopt(accounting, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_connect(accounting, words[1]) != 0 || zmq_connect(control, words[2]) != 0) return 1;
    sleep(1);
    static double lags[MOST];
    int number = 0;
    char identifier[32];
    double begin = now(), end = begin + atof(words[3]);
    while (number < MOST) {
        double due = begin + number * EVERY, time = now();
        if (due >= end) break;
        if (due > time) usleep((due - time) * 1e6);
        snprintf(identifier, sizeof identifier, "%d-%d", (int)getpid(), number);
        /* Oversleeping of this process is not the master's latency. */
        time = now();
        double from = time - due < EVERY ? time : due;
        report(accounting, identifier);
        if (hear(control, identifier) != 0) return 1;
        lags[number++] = (now() - from) * 1000;
    }
    qsort(lags, number, sizeof *lags, by_size);
    printf("%d %.3f %.3f %.3f %.3f\n", number, lags[number / 2], lags[number * 99 / 100], lags[(int)(number * 0.999)], lags[number - 1]);
    return 0;
}
