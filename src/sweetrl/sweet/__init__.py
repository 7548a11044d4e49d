"""SWEET-RL: pairs of dialogues, a critic that sees c (Eqs. 2-3), ranked replies, a policy that does not (Eq. 4)."""
