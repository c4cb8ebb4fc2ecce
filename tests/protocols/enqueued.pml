/* The ring on GPUs: the host enqueues all steps and waits for none. Two streams a rank run them: one computes, the other
   sends and receives. Two events a hop, ready and arrived, order them.
   Property: no message is received into memory that a kernel still reads, no kernel reads memory that a message still
   writes, every kernel computes with the K,V of owner(t), and both streams of all ranks end.

   Mirrors src/ring_attention/ring/transports/nccl.cpp, NcclTransport::start() and finish():
     |   events.ready.record(compute_);
     |   events.ready.block(world_.stream());
     |   world_.shift(hop);
     |   events.arrived.record(world_.stream());
     |   events.arrived.block(compute_);

   Left out: the host, drain() and its time-outs, and the numbers. Assumed: the work of one stream runs in order, an event
   waits for what was enqueued before it, and a group of ncclSend and ncclRecv moves both messages at some time.

   Mistakes: NO_READY, the messages do not wait for the kernel before; NO_ARRIVED, the kernel does not wait for the
   messages. */
#include "topology.pml"

typedef Buffers { byte holds[2]; bool sending[2]; bool receiving[2]; bool reading[2] }
Buffers at[N];
byte ready[N], arrived[N];                 /* events so far: ready of step t when ready > t */
bool send_posted[N], receive_posted[N];
byte sent_from[N], received_to[N];
bool send_open[N], receive_open[N];
byte ended;

proctype Compute(byte r) {
  byte now = 0, t = 0;
  do
  :: true ->
     ready[r]++;
     atomic { assert(!at[r].receiving[now]);    /* a kernel reads memory that a message still writes */
              at[r].reading[now] = true }
     atomic { assert(!NEEDED(r, t) || at[r].holds[now] == OWNER(r, t));
              at[r].reading[now] = false }
     if :: t == N - 1 -> break :: else fi;
#ifndef NO_ARRIVED
     (arrived[r] > t);
#endif
     now = 1 - now; t++
  od;
  now = 0; t = 0; ended++
}

proctype Transfers(byte r) {
  byte now = 0, t = 0;
  do
  :: t == N - 1 -> break
  :: else ->
#ifndef NO_READY
     (ready[r] > t);
#endif
     atomic {
       if
       :: RECEIVES(r, t) ->
          assert(!at[r].reading[1 - now]);      /* receive into memory that a kernel still reads */
          assert(!at[r].sending[1 - now]);
          received_to[r] = 1 - now; at[r].receiving[1 - now] = true; receive_open[r] = true; receive_posted[r] = true
       :: else
       fi;
       if
       :: SENDS(r, t) ->
          assert(!at[r].receiving[now]);
          sent_from[r] = now; at[r].sending[now] = true; send_open[r] = true; send_posted[r] = true
       :: else
       fi
     }
     (!send_open[r] && !receive_open[r]);
     arrived[r]++;
     now = 1 - now; t++
  od;
  now = 0; t = 0; ended++
}

proctype Messages(byte r) {
  byte value;
  end: do
  :: atomic { send_posted[r] && receive_posted[NEXT(r)] -> send_posted[r] = false; receive_posted[NEXT(r)] = false;
              value = at[r].holds[sent_from[r]] }
     atomic { at[NEXT(r)].holds[received_to[NEXT(r)]] = value;
              at[NEXT(r)].receiving[received_to[NEXT(r)]] = false; receive_open[NEXT(r)] = false }
     atomic { at[r].sending[sent_from[r]] = false; send_open[r] = false; value = 0 }
  od
}

init {
  byte i = 0;
  atomic {
    choose_hops();
    do
    :: i < N -> at[i].holds[0] = i; at[i].holds[1] = NONE; run Compute(i); run Transfers(i); run Messages(i); i++
    :: else -> break
    od;
    i = 0
  }
  (ended == 2 * N)
}
