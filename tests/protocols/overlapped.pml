/* The overlapped ring: two buffers, a receive and a send that are posted before the compute and waited for after it.
   Property: no message is received into memory that is still being sent, no rank computes with memory that a message
   still writes, every rank computes at step t with the K,V of owner(t), and ends.

   Mirrors src/ring_attention/ring/forward.hpp, ring_forward():
     |     if (!last) transport.start(kv.exchange(ring.owner(step + 1)));   // a copy of K,V leaves
     |     engine.accumulate(kv.current(), [&] { transport.progress(); });  // merge into (o, m, l)
     |     if (!last) { transport.finish(); kv.advance(); }                 // the next K,V are here
   and src/ring_attention/ring/transports/overlapped.cpp, start(), arrived() and finish():
     |   if (!hop.receive.empty())
     |   if (hop.send.empty()) return;
     |   check_mpi(MPI_Testall(2, requests_.data(), &flag, statuses_.data()));
     |   for (int calls = 1; !arrived(); ++calls) back_off(calls);

   Left out: progress() and the numbers. Assumed of MPI: a message whose send and receive are posted moves at some time
   (MPICH moves it inside the calls of progress() and finish()), whole and in order. A message may be copied when it is
   posted (eager), or later, at any time before its send is complete (rendezvous).

   Mistakes: WAITS 1, for the receive alone; 2, for the send alone; 0, for neither. EARLY: the buffers are swapped before
   the wait. */
#include "topology.pml"
#ifndef WAITS
#define WAITS 3
#endif

typedef Buffers { byte holds[2]; bool sending[2]; bool receiving[2] }
Buffers at[N];
byte sent_from[N], received_to[N];         /* which buffer of the rank */
bool send_posted[N], receive_posted[N];    /* and not matched yet */
bool send_open[N], receive_open[N];        /* the request is not complete */
byte ended;

proctype Rank(byte r) {
  byte now = 0, t = 0;
  do
  :: true ->
     if
     :: t < N - 1 && RECEIVES(r, t) -> atomic {
          assert(!at[r].sending[1 - now]);      /* receive into memory that is still being sent */
          assert(!receive_open[r]);
          received_to[r] = 1 - now; at[r].receiving[1 - now] = true; receive_open[r] = true; receive_posted[r] = true }
     :: else
     fi;
     if
     :: t < N - 1 && SENDS(r, t) -> atomic {
          assert(!send_open[r]);
          assert(!at[r].receiving[now]);        /* send what has not arrived */
          sent_from[r] = now; at[r].sending[now] = true; send_open[r] = true; send_posted[r] = true }
     :: else
     fi;
#ifdef EARLY
     if :: t < N - 1 -> now = 1 - now :: else fi;
#endif
     atomic {
       assert(!at[r].receiving[now]);           /* compute with memory that a message still writes */
       assert(!NEEDED(r, t) || at[r].holds[now] == OWNER(r, t)) }
     if :: t == N - 1 -> break :: else fi;
#if WAITS & 1
     (!receive_open[r]);
#endif
#if WAITS & 2
     (!send_open[r]);
#endif
#ifndef EARLY
     now = 1 - now;
#endif
     t++
  od;
  (!receive_open[r] && !send_open[r]);
  now = 0; t = 0; ended++
}

/* MPI, for the messages from r to NEXT(r). The send may complete later than the receive. */
proctype Messages(byte r) {
  byte value;
  end: do
  :: atomic { send_posted[r] && receive_posted[NEXT(r)] -> send_posted[r] = false; receive_posted[NEXT(r)] = false }
     value = at[r].holds[sent_from[r]];
     atomic { at[NEXT(r)].holds[received_to[NEXT(r)]] = value;
              at[NEXT(r)].receiving[received_to[NEXT(r)]] = false; receive_open[NEXT(r)] = false }
     atomic { at[r].sending[sent_from[r]] = false; send_open[r] = false; value = 0 }
#ifdef EAGER
  :: atomic { send_posted[r] -> value = at[r].holds[sent_from[r]]; send_posted[r] = false;
              at[r].sending[sent_from[r]] = false; send_open[r] = false }
     atomic { receive_posted[NEXT(r)] -> receive_posted[NEXT(r)] = false;
              at[NEXT(r)].holds[received_to[NEXT(r)]] = value;
              at[NEXT(r)].receiving[received_to[NEXT(r)]] = false; receive_open[NEXT(r)] = false; value = 0 }
#endif
  od
}

init {
  byte i = 0;
  atomic {
    choose_hops();
    do :: i < N -> at[i].holds[0] = i; at[i].holds[1] = NONE; run Rank(i); run Messages(i); i++ :: else -> break od;
    i = 0
  }
  (ended == N)
}
