/* The ring, backward: two channels, K,V and their gradients, over blocking messages in odd/even order.
   A parcel of gradients is its owner and the set of ranks that have added to it, one bit each.
   Property: a rank adds to the gradients of the K,V with which it has computed; every rank ends with its own parcel, to
   which all ranks have added.

   Mirrors src/ring_attention/ring/backward.hpp, ring_backward():
     |     if (!last) kv_transport.start(kv.exchange(ring.owner(step + 1)));
     |     engine.accumulate(kv.current(), {step_gradient.k(owner), step_gradient.v(owner)}, progress);
     |     if (step > 0) {  // dK,dV of these K,V are here
     |       gradient_transport.finish();
     |     gradients.add_spare();
     |     if (step < ring.gradient_hops()) gradient_transport.start(gradients.exchange(ring.owner(step + 1)));
     |       kv_transport.finish();
     |   if (ring.gradient_hops() == ring.steps()) {  // the last hop returns this rank's own parcel
   and src/ring_attention/ring/transports/odd_even.cpp: a hop is that of blocking.pml, the whole of it in finish(), with
     |   if (ring.rank % 2 == 0) send();
     |   check_mpi(MPI_Barrier(comm_.handle()));

   Left out: the buffers (overlapped.pml has them) and the numbers. EAGER as in blocking.pml.

   Mistakes: GRADIENT_HOPS N - 1; ADDS_EARLY, before the parcel has arrived; SWAPPED r, rank r alone finishes the hop of
   K,V before that of the gradients. */
#include "topology.pml"
#ifndef EAGER
#define EAGER 0
#endif
#ifndef GRADIENT_HOPS
#define GRADIENT_HOPS N
#endif
#ifndef SWAPPED
#define SWAPPED NONE
#endif
#define ALL ((1 << N) - 1)

chan kv[N] = [EAGER] of { byte };
chan gradients[N] = [EAGER] of { byte, byte };
byte entered;   /* ranks that have entered the barrier, in all hops so far */
byte ended;

inline barrier() { entered++; passed++; (entered >= N * passed) }

inline send_kv() { if :: SENDS(r, t) -> kv[r] ! held :: else fi }
inline receive_kv() { if :: RECEIVES(r, t) -> kv[PREV(r)] ? incoming :: else -> incoming = NONE fi }
inline finish_kv() {
  if :: r % 2 == 0 -> send_kv(); receive_kv() :: else -> receive_kv(); send_kv() fi;
  barrier()
}

inline finish_gradients() {
  if
  :: r % 2 == 0 -> gradients[r] ! owner, bits; gradients[PREV(r)] ? in_owner, in_bits
  :: else -> gradients[PREV(r)] ? in_owner, in_bits; gradients[r] ! owner, bits
  fi;
  barrier();
  owner = in_owner; bits = in_bits; in_owner = 0; in_bits = 0
}

inline add() {
  assert(!NEEDED(r, t) || owner == held);   /* the gradients of the K,V of this step */
  assert(owner == OWNER(r, t));
  bits = bits | (1 << r)
}

proctype Rank(byte r) {
  byte t = 0, held = r, incoming = NONE, owner = r, bits = 0, in_owner = 0, in_bits = 0, passed = 0;
  do
  :: t == N -> break
  :: else ->
     assert(!NEEDED(r, t) || held == OWNER(r, t));   /* compute */
#ifdef ADDS_EARLY
     add();
#endif
     if :: r == SWAPPED && t < N - 1 -> finish_kv() :: else fi;
     if :: t > 0 && t <= GRADIENT_HOPS -> finish_gradients() :: else fi;
#ifndef ADDS_EARLY
     add();
#endif
     if :: r != SWAPPED && t < N - 1 -> finish_kv() :: else fi;
     held = incoming; incoming = NONE; t++
  od;
  if :: GRADIENT_HOPS == N -> finish_gradients() :: else fi;
  assert(owner == r && bits == ALL);
  t = 0; held = NONE; ended++
}

init {
  byte i = 0;
  atomic { choose_hops(); do :: i < N -> run Rank(i); i++ :: else -> break od; i = 0 }
  (ended == N)
}
