/* The blocking ring: ordered sends, and a barrier a hop.
   Property: every rank ends, and computes at step t with the K,V of owner(t).

   Mirrors src/ring_attention/ring/transports/odd_even.cpp, OddEvenTransport::finish():
     |   if (ring.rank % 2 == 0) send();
     |   if (!received.empty()) {
     |   if (ring.rank % 2 != 0) send();
     |   check_mpi(MPI_Barrier(comm_.handle()));
   and src/ring_attention/ring/forward.hpp, ring_forward():
     |   for (int step = 0; step < ring.steps(); ++step) {
     |     engine.accumulate(kv.current(), [&] { transport.progress(); });  // merge into (o, m, l)
     |     if (!last) { transport.finish(); kv.advance(); }                 // the next K,V are here

   Left out: start(), which only stores its argument, and the numbers. Assumed of MPI: a message arrives, whole and in
   order. EAGER is the number of messages a link holds that MPI has copied; 0: a send waits for its receive (rendezvous).

   Mistakes: SENDS_FIRST or RECEIVES_FIRST, on all ranks.
   Variants that are right: ONE_RECEIVES_FIRST, rank 0 alone; NO_BARRIER. */
#include "topology.pml"
#ifndef EAGER
#define EAGER 0
#endif
#if defined(SENDS_FIRST)
#define SEND_IS_FIRST(r) true
#elif defined(RECEIVES_FIRST)
#define SEND_IS_FIRST(r) false
#elif defined(ONE_RECEIVES_FIRST)
#define SEND_IS_FIRST(r) (r != 0)
#else
#define SEND_IS_FIRST(r) (r % 2 == 0)
#endif

chan link[N] = [EAGER] of { byte };   /* link[r]: from r to NEXT(r); a message is the rank whose K,V it carries */
byte entered;                         /* ranks that have entered the barrier, in all hops so far */
byte ended;

inline send_() { if :: SENDS(r, t) -> link[r] ! held :: else fi }
inline receive_() { if :: RECEIVES(r, t) -> link[PREV(r)] ? incoming :: else -> incoming = NONE fi }

proctype Rank(byte r) {
  byte held = r, incoming = NONE, t = 0;
  do
  :: true ->
     assert(!NEEDED(r, t) || held == OWNER(r, t));   /* compute */
     if :: t == N - 1 -> break :: else fi;
     if
     :: SEND_IS_FIRST(r) -> send_(); receive_()
     :: else -> receive_(); send_()
     fi;
#ifndef NO_BARRIER
     entered++;
     (entered >= N * (t + 1));
#endif
     held = incoming; incoming = NONE;
     t++
  od;
  held = NONE; t = 0; ended++
}

init {
  byte i = 0;
  atomic { choose_hops(); do :: i < N -> run Rank(i); i++ :: else -> break od; i = 0 }
  (ended == N)
}
