/* An original gatekeeper at full speed: accounting messages on a libzmq PUB socket, with random callers.
 * Arguments: the endpoint to connect to, the duration in seconds, messages per second (0 for the maximum), and the number of callers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 5) return 2;
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, ZMQ_PUB);
    int high_water = 50000, linger = 0;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &high_water, sizeof high_water);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_connect(socket, words[1]) != 0) return 1;
    sleep(1);
    double begin = now(), end = begin + atof(words[2]), rate = atof(words[3]);
    unsigned long callers = strtoul(words[4], 0, 10), chance = 88172645463325252 ^ getpid();
    char identifier[32], received[32];
    unsigned long sent = 0;
    while (1) {
        if (sent % 64 == 0) {
            double time = now(), due = rate > 0 ? begin + sent / rate : time;
            if (time >= end) break;
            if (due > time) usleep((due - time) * 1e6);
            struct timespec wall;
            clock_gettime(CLOCK_REALTIME, &wall);
            snprintf(received, sizeof received, "%ld%03ld", (long)wall.tv_sec, wall.tv_nsec / 1000000);
        }
        chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
        unsigned long caller = chance % callers;
        int length = snprintf(identifier, sizeof identifier, "10.%lu.%lu.%lu", caller >> 16, (caller >> 8) & 255, caller & 255);
        zmq_send(socket, "default", 8, ZMQ_SNDMORE);
        zmq_send(socket, "ACCEPTED", 8, ZMQ_SNDMORE);
        zmq_send(socket, identifier, length, ZMQ_SNDMORE);
        zmq_send(socket, received, strlen(received), ZMQ_SNDMORE);
        zmq_send(socket, "", 0, ZMQ_SNDMORE);
        zmq_send(socket, "", 0, 0);
        sent++;
    }
    printf("%lu\n", sent);
    zmq_close(socket);
    zmq_ctx_term(context);
    return 0;
}
