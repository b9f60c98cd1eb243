/* The baseline of libzmq for the same messages: a SUB socket that discards every frame.
 * Arguments: the endpoint to bind to, and the duration in seconds from the first message. Prints messages per second and their
 * number, and waits to be killed, so that its CPU time can be read. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, ZMQ_SUB);
    int high_water = 50000;
    zmq_setsockopt(socket, ZMQ_RCVHWM, &high_water, sizeof high_water);
    zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    if (zmq_bind(socket, words[1]) != 0) return 1;
    puts("ready");
    fflush(stdout);
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    unsigned long messages = 0;
    double begin = 0, end = 0;
    while (1) {
        if (zmq_msg_recv(&frame, socket, 0) < 0) return 1;
        if (zmq_msg_more(&frame)) continue;
        if (messages == 0) end = (begin = now()) + atof(words[2]);
        messages++;
        if (messages % 1024 == 0 && now() >= end) break;
    }
    printf("%.0f %lu\n", messages / (now() - begin), messages);
    fflush(stdout);
    pause();
    return 0;
}
